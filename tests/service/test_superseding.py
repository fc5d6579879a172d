"""Later timings take the place of earlier ones on a server, which quarantines these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dejavu_client.http.errors import RefusedError, UnreachableError
from dejavu_client.http.remote_store import RemoteStore
from support.command_line import run_cli
from support.records import context, measurement, record

from dejavu_cache.model.record import Winner
from dejavu_cache.model.scenario import now
from dejavu_cache.stores import FileStore, TieredStore


def test_later_timings_and_their_winner_take_the_place_of_earlier_ones(
    store: RemoteStore, tmp_path: Path
) -> None:
    local = FileStore(tmp_path / "records")
    tiers = TieredStore([local, store])
    before = record(1, measurement(16), measurement(32))
    tiers.put_now(context(), [before])
    slow = measurement(16, 9.0, now())
    winner = Winner(config=measurement(32).config, at=now())
    tiers.supersede(context(), record(1, slow, winner=winner))
    for tier in (local, store):
        found = tier.get(context(), before.scenario, fresh=True)
        assert found is not None
        assert found.record == record(1, slow, measurement(32), winner=winner)
    quarantined = store.client.list_quarantines()[0]["id"]
    assert store.client.undo_quarantine(quarantined)["measurements"] == 1


@pytest.mark.parametrize("identity", ["9a2b", "9a2b9a2b9a2b9a2b"])
def test_an_unknown_quarantine_is_not_found(namespace_url: str, identity: str) -> None:
    out = run_cli("quarantine", "undo", identity, "--server", namespace_url)
    assert out.returncode == 1
    assert "`dejavu-cache quarantine list`" in out.stderr


@pytest.mark.parametrize("ending", [KeyboardInterrupt, UnreachableError])
def test_what_replaces_quarantined_timings_is_kept_if_that_is_cut_short(
    store: RemoteStore, monkeypatch: pytest.MonkeyPatch, ending: type[BaseException]
) -> None:
    before = record(1, measurement(16), measurement(32))
    after = record(1, measurement(16, 9.0, now()), measurement(32, 8.0, now()))
    store.put_now(context(), [before])
    quarantine, calls = store.client.quarantine, iter([True, False])

    def quarantine_once(wish: Any) -> Any:
        if next(calls):
            return quarantine(wish)
        raise ending("cut short")

    monkeypatch.setattr(store.client, "quarantine", quarantine_once)
    with pytest.raises(ending):
        store.supersede(context(), after)
    assert store.sender.flush(240)
    found = store.get(context(), before.scenario, fresh=True)
    assert found is not None
    expected = {*after.measurements[:1], *before.measurements[1:]}
    assert set(found.record.measurements) == expected

    def refuse(wish: Any) -> Any:
        raise RefusedError("needs the role admin", 403)

    monkeypatch.setattr(store.client, "quarantine", refuse)
    with pytest.raises(RefusedError):
        store.supersede(context(), record(2, measurement(16)))
    assert store.get(context(), record(2).scenario, fresh=True) is None
