"""What was taken from readers is given back, whatever happens meanwhile."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from dejavu_service.services import quarantines as service
from support.quarantines import Token, post, quarantine, read, undo
from support.service import record


def cut_an_undo_short(
    client: httpx.Client, admin: Token, number: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Undo a quarantine's first two scenarios, and fail."""
    give_back, pages = service._give_back, iter(range(9))

    def give_back_once(*arguments: Any) -> Any:
        if next(pages):
            raise OSError("cut short")
        return give_back(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(service, "_MOST_SCENARIOS", 2)
        patch.setattr(service, "_give_back", give_back_once)
        assert undo(client, admin, number).status_code == 500


def test_an_undo_of_a_quarantine_that_still_runs_leaves_nothing_behind(
    client: httpx.Client, admin: Token, evil: Token, monkeypatch: pytest.MonkeyPatch
) -> None:
    post(client, evil, *(record(m) for m in range(1, 5)))
    before = read(client, admin)
    split, pages = service._pages, iter(range(99))

    def split_and_undo(*arguments: Any) -> Any:
        for page in split(*arguments):
            yield page
            if next(pages) == 0:
                (running,) = client.get("/v1/main/quarantines", headers=admin.headers).json()[
                    "quarantines"
                ]
                assert undo(client, admin, running["id"]).status_code == 200

    monkeypatch.setattr(service, "_MOST_SCENARIOS", 1)
    monkeypatch.setattr(service, "_pages", split_and_undo)
    done = quarantine(client, admin, token=evil.id)
    assert done["records"] == 1
    assert read(client, admin) == before


def test_what_is_quarantined_again_in_the_middle_of_an_undo_comes_back_once(
    client: httpx.Client,
    admin: Token,
    fleet: Token,
    evil: Token,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    post(client, evil, *(record(m) for m in range(1, 5)))
    before = read(client, admin)
    first = quarantine(client, admin, token=evil.id)
    cut_an_undo_short(client, admin, first["id"], monkeypatch)
    second = quarantine(client, admin, token=evil.id)
    assert second["records"] == 2
    again = record(3, median=0.5, after=60)
    post(client, fleet, again)
    for done in (second, first):
        assert undo(client, admin, done["id"]).status_code == 200
    after = {item.scenario: item for item in read(client, admin)}
    assert [after[item.scenario] for item in before if item.scenario != again.scenario] == [
        item for item in before if item.scenario != again.scenario
    ]
    assert after[again.scenario].measurements == again.measurements, "beside what came since"
