"""Replicas whose clocks are days apart agree on what is dated ahead."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import httpx
import pytest
from support.service import body, config, context, measurement, record, record_set, scenario

from dejavu_cache.model import scenario as clock
from dejavu_cache.model.record import Record, RecordSet, Winner

HOME = f"/v1/main/contexts/{context().digest}"


@contextmanager
def clock_off_by(days: float) -> Iterator[None]:
    """Put this process's clock forward or back, and not the database's."""
    right = clock.now
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "now", lambda: right() + timedelta(days=days))
        yield


def record_of(days: float) -> Record:
    """Return a record that was measured so many days from now."""
    at = clock.now() + timedelta(days=days)
    tuned = record()
    measurements = tuple(item.model_copy(update={"at": at}) for item in tuned.measurements)
    winner = Winner(config=config(16), at=at)
    return tuned.model_copy(update={"measurements": measurements, "winner": winner})


def post(client: httpx.Client, sent: Record) -> dict[str, int]:
    answer = client.post("/v1/main/records", json=body(record_set(sent)))
    assert answer.status_code == 200, answer.text
    counts: dict[str, int] = answer.json()
    return counts


def read(client: httpx.Client) -> Record:
    (stored,) = RecordSet.model_validate_json(client.get(f"{HOME}/records").content).records
    return stored


def test_a_server_whose_clock_is_slow_takes_no_winner_back(client: httpx.Client) -> None:
    tuned = record_of(0)
    post(client, tuned)
    with clock_off_by(days=-3):
        added = Record(scenario=scenario(), measurements=(measurement(config(128)),))
        assert post(client, added) == {"records": 1, "measurements": 1, "beside": 0}
    assert read(client).winner == tuned.winner


def test_a_server_whose_clock_is_slow_stores_what_was_measured_now(client: httpx.Client) -> None:
    tuned = record_of(0)
    with clock_off_by(days=-3):
        assert post(client, tuned)["measurements"] == 3
    assert read(client) == tuned


def test_a_server_whose_clock_is_fast_stores_nothing_dated_ahead(client: httpx.Client) -> None:
    tuned = record_of(days=2)
    with clock_off_by(days=3):
        assert post(client, tuned)["refused"] == 3


def test_a_pin_that_a_slow_server_dates_is_later_than_the_one_before(client: httpx.Client) -> None:
    post(client, record_of(0))
    pin = f"{HOME}/pins/{scenario().digest}"
    client.put(pin, json={"config": body(config(16))})
    first = read(client).pin
    with clock_off_by(days=-3):
        client.put(pin, json={"config": body(config(32))})
    second = read(client).pin
    assert first is not None
    assert second is not None
    assert second.at > first.at


def test_a_winner_that_a_slow_server_promotes_is_later_than_the_one_before(
    client: httpx.Client,
) -> None:
    post(client, record_of(0))
    standing = read(client).winner
    other = record_of(-0.1).model_copy(
        update={"winner": Winner(config=config(32), at=clock.now() - timedelta(days=0.1))}
    )
    client.post("/v1/pr-1/records", json=body(record_set(other)))
    with clock_off_by(days=-3):
        client.post("/v1/pr-1/promote", json={"to": "main"})
    promoted = read(client).winner
    assert standing is not None
    assert promoted is not None
    assert (promoted.config, promoted.at > standing.at) == (config(32), True)
