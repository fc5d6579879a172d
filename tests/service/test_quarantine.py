"""What one token or one host wrote is listed and taken from readers."""

import itertools
from typing import Any

import httpx
import pytest
from dejavu_service.services import quarantines as service
from dejavu_service.services import retention
from dejavu_service.storage import records
from dejavu_service.storage.database import Database
from dejavu_service.storage.tables import contexts
from fastapi import FastAPI
from sqlalchemy import event, update
from support.service import (
    START,
    Token,
    config,
    pin,
    post,
    quarantine,
    read,
    record,
    scenario,
    undo,
)

from dejavu_cache.model.record import Record, Winner, divide
from dejavu_cache.model.scenario import now


def test_pages_are_bounded_by_parts_too() -> None:
    pages = list(divide([(size, size) for size in (3000, 3000, 100, 9000, 1)], 100, 5000))
    assert pages == [[3000], [3000, 100], [9000], [1]]
    assert [len(page) for page in divide([("x", 1)] * 250, 100, 5000)] == [100, 100, 50]


def test_a_writer_of_many_records_is_withdrawn_in_few_statements(
    client: httpx.Client, app: FastAPI, admin: Token, fleet: Token, evil: Token
) -> None:
    honest = [record(m, median=0.5, configs=2, after=60) for m in (1, 249)]
    everything = [record(m, configs=2) for m in range(1, 250)]
    for start in range(0, 250, 50):
        post(client, *everything[start : start + 50], headers=evil)
    post(client, *honest, headers=fleet)
    before = read(client, headers=admin)
    statements: list[str] = []
    engine = app.state.server.database.engine
    event.listen(engine, "before_cursor_execute", lambda *sent: statements.append(sent[2]))
    done = quarantine(client, admin, token=evil.id)
    withdrawn = len(statements)
    left = read(client, headers=admin)
    assert undo(client, admin, done["id"]).json() == done
    assert (done["records"], done["measurements"]) == (249, 498)
    assert {item.scenario: item.measurements for item in left} == {
        item.scenario: item.measurements for item in honest
    }
    assert withdrawn < 100
    assert len(statements) < 500
    again = read(client, headers=admin)
    assert [item.scenario for item in again] == [item.scenario for item in before]
    assert [item.winner for item in again] == [item.winner for item in before]


@pytest.mark.parametrize(
    ("mine", "other"),
    [("Fleet", "fleet"), ("a%", "ab"), ("a_c", "abc"), ("a\\c", "ac"), ("a/c", "ac"), ("É", "é")],
)
def test_names_are_compared_letter_by_letter(
    client: httpx.Client, admin: Token, database: Database, mine: str, other: str
) -> None:
    for number, name in enumerate((mine, other, f"{mine}{other}"), start=1):
        writer = Token(database, name)
        post(client, record(number, by=f"ann@{name}.host"), headers=writer)
        if name == mine:
            assert quarantine(client, admin, token=writer.id, preview=True)["records"] == 1
    for wish in ({"token": mine}, {"host": f"{mine}.host"}, {"host": f"ann@{mine}.host"}):
        assert quarantine(client, admin, **wish, preview=True)["measurements"] == 3, wish
    assert quarantine(client, admin, host=f"{mine.swapcase()}.hos", preview=True)["records"] == 0
    quarantine(client, admin, token=mine)
    assert [item.scenario for item in read(client, headers=admin)] == [scenario(2), scenario(3)]


def test_a_host_is_found_behind_every_token(
    client: httpx.Client, admin: Token, fleet: Token
) -> None:
    earlier = now().isoformat()
    post(client, record(1, by="ann@h200-1"), record(2, by="bob@h200-10"), headers=fleet)
    post(client, record(3, by="bob@h200-1"), record(4, by="eve@x@h200-1%"), headers=fleet)
    listed = client.get("/v1/main/writers", headers=admin).json()["writers"]
    assert {(item["sender"], item["by"], item["measurements"]) for item in listed} == {
        (f"fleet ({fleet.id})", by, 3)
        for by in ("ann@h200-1", "bob@h200-10", "bob@h200-1", "eve@x@h200-1%")
    }
    for host, count in (("h200-1", 2), ("ann@h200-1", 1), ("h200-1%", 1), ("%", 0), ("200-1", 0)):
        assert quarantine(client, admin, host=host, preview=True)["records"] == count, host
    later = now().isoformat()
    for since, until, count in ((earlier, later, 2), (later, None, 0), (None, earlier, 0)):
        wish: dict[str, Any] = {"host": "h200-1", "since": since, "until": until, "preview": True}
        assert quarantine(client, admin, **wish)["records"] == count
    quarantine(client, admin, host="h200-1")
    assert [item.scenario for item in read(client, headers=admin)] == [scenario(2), scenario(4)]


def test_the_context_of_a_quarantine_is_not_pruned(
    client: httpx.Client, admin: Token, evil: Token, database: Database
) -> None:
    post(client, record(1), headers=evil)
    identity = quarantine(client, admin, token=evil.id)["id"]
    with database.write() as connection:
        connection.execute(update(contexts).values(used_at=0.0))
    assert retention.prune(database, 1, 1).contexts == 0
    assert undo(client, admin, identity).status_code == 200
    assert read(client, headers=admin) == [record(1)]


def test_it_is_an_admins_listed_and_logged(client: httpx.Client, admin: Token, evil: Token) -> None:
    post(client, record(1), headers=evil)
    identity = quarantine(client, admin, token=evil.id)["id"]
    assert quarantine(client, admin, token="nobody", preview=True)["records"] == 0
    undo(client, admin, identity)
    listed = client.get("/v1/main/quarantines", headers=admin).json()["quarantines"]
    assert [(item["id"], item["request"]) for item in listed] == [(identity, {"token": evil.id})]
    assert listed[0]["undone"] is not None
    logged = client.get("/v1/main/log", headers=admin).json()["entries"]
    assert [entry["action"] for entry in logged] == ["undo quarantine", "quarantine"]
    assert logged[1]["detail"] == {"id": identity, "token": evil.id}
    assert client.post("/v1/main/quarantines", json={}, headers=admin).status_code == 422
    assert undo(client, admin, "0" * 16).status_code == 404
    elsewhere = client.delete(f"/v1/pr-1/quarantines/{identity}", headers=admin)
    assert elsewhere.status_code == 404


def test_an_undo_of_a_quarantine_that_still_runs_leaves_nothing_behind(
    client: httpx.Client, admin: Token, evil: Token, monkeypatch: pytest.MonkeyPatch
) -> None:
    post(client, *(record(m) for m in range(1, 5)), headers=evil)
    before = read(client, headers=admin)
    split, pages = service._pages, itertools.count()

    def split_and_undo(*arguments: Any) -> Any:
        for page in split(*arguments):
            yield page
            if next(pages) == 0:
                (running,) = client.get("/v1/main/quarantines", headers=admin).json()["quarantines"]
                assert undo(client, admin, running["id"]).status_code == 200

    monkeypatch.setattr(service, "_MOST_SCENARIOS", 1)
    monkeypatch.setattr(service, "_pages", split_and_undo)
    done = quarantine(client, admin, token=evil.id)
    assert done["records"] == 0
    assert read(client, headers=admin) == before


def test_what_is_quarantined_again_in_the_middle_of_an_undo_comes_back_once(
    client: httpx.Client, admin: Token, fleet: Token, evil: Token, monkeypatch: pytest.MonkeyPatch
) -> None:
    post(client, *(record(m) for m in range(1, 5)), headers=evil)
    before = read(client, headers=admin)
    first = quarantine(client, admin, token=evil.id)
    hide, pages = records.hide, itertools.count()

    def give_two_scenarios_back(*arguments: Any) -> None:
        if next(pages):
            raise OSError("cut short")
        hide(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(service, "_MOST_SCENARIOS", 2)
        patch.setattr(records, "hide", give_two_scenarios_back)
        assert undo(client, admin, first["id"]).status_code == 500
    second = quarantine(client, admin, token=evil.id)
    assert second["records"] == 2
    again = record(3, median=0.5, after=60)
    post(client, again, headers=fleet)
    for done in (second, first):
        assert undo(client, admin, done["id"]).status_code == 200
    after = read(client, headers=admin)
    came_since = [item for item in after if item.scenario == again.scenario]
    assert [item for item in after if item not in came_since] == [
        item for item in before if item.scenario != again.scenario
    ]
    assert [item.measurements for item in came_since] == [again.measurements]


def test_a_winner_is_dated_by_its_own_arrival(
    client: httpx.Client, admin: Token, fleet: Token, evil: Token
) -> None:
    """Whoever touches a record later, even by a pin or a measurement, moves no winner in time."""
    alone = Record(scenario=scenario(1), winner=Winner(config=config(64), at=START))
    post(client, alone, headers=evil)
    post(client, record(2), to="pr-1", headers=evil)
    promoted = client.post("/v1/pr-1/promote", json={"to": "main"}, headers=admin)
    assert promoted.is_success
    between = now().isoformat()
    for number in (1, 2):
        pin(client, 16, number, headers=admin).raise_for_status()
        unfinished = record(number, configs=5).model_copy(update={"winner": None})
        post(client, unfinished, headers=fleet)
    for token in (evil.id, admin.id):
        sent: dict[str, Any] = {"token": token, "preview": True}
        assert quarantine(client, admin, **sent, until=between)["winners"] == 1
        assert quarantine(client, admin, **sent, since=between)["winners"] == 0
