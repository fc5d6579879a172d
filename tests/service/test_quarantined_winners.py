"""Winners are taken with who sent or promoted them, and when."""

from __future__ import annotations

from typing import Any

import httpx
from support.quarantines import Token, post, quarantine
from support.service import START, body, config, context, record, scenario

from dejavu_cache.model.record import Record, Winner
from dejavu_cache.model.scenario import now


def test_a_winner_is_dated_by_its_own_arrival(
    client: httpx.Client, admin: Token, fleet: Token, evil: Token
) -> None:
    """Whoever touches a record later, even by a pin or a measurement, moves no winner in time."""
    post(client, evil, Record(scenario=scenario(1), winner=Winner(config=config(64), at=START)))
    post(client, evil, record(2), at="pr-1")
    promoted = client.post("/v1/pr-1/promote", json={"to": "main"}, headers=admin.headers)
    assert promoted.is_success
    between = now().isoformat()
    pin = {"config": body(config(16)), "by": "ops"}
    for number in (1, 2):
        where = f"/v1/main/contexts/{context().digest}/pins/{scenario(number).digest}"
        client.put(where, json=pin, headers=admin.headers).raise_for_status()
        post(client, fleet, record(number, configs=5).model_copy(update={"winner": None}))
    for token in (evil.id, admin.id):
        sent: dict[str, Any] = {"token": token, "preview": True}
        assert quarantine(client, admin, **sent, until=between)["winners"] == 1
        assert quarantine(client, admin, **sent, since=between)["winners"] == 0
