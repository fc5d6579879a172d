"""Winners are taken with who sent or promoted them, and when."""

from __future__ import annotations

from typing import Any

import httpx
from dejavu_service.storage.database import Database
from support.quarantines import Token, post, quarantine, read, undo
from support.service import START, body, config, context, record, scenario

from dejavu_cache.model.merge import part_digest, without_parts
from dejavu_cache.model.record import Failure, Measurement, OutputVerdict, Record, Winner
from dejavu_cache.model.scenario import now


def test_a_winner_alone_is_taken_too_and_told_to_copies(
    client: httpx.Client, admin: Token, fleet: Token, evil: Token
) -> None:
    honest = record(1).model_copy(update={"winner": None})
    slowest = Winner(config=config(64), at=START)
    post(client, fleet, honest)
    post(client, evil, Record(scenario=scenario(1), winner=slowest))
    copy = read(client, admin)[0]
    assert copy.winner == slowest
    assert quarantine(client, admin, token="evil")["winners"] == 1
    assert read(client, admin) == [honest]
    asked = {"revision": "", "scenarios": {scenario(1).digest: ""}}
    changed = client.post(
        "/v1/main/revalidation", json={"contexts": {context().digest: asked}}, headers=fleet.headers
    ).json()["contexts"][context().digest]
    assert changed["recalls"] == {scenario(1).digest: [part_digest(slowest)]}
    assert without_parts(copy, changed["recalls"][scenario(1).digest]) == honest
    post(client, fleet, copy)
    assert read(client, admin) == [honest]
    assert quarantine(client, admin, token="evil", preview=True)["records"] == 0


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


def test_a_winner_that_was_promoted_goes_with_who_promoted_it(
    client: httpx.Client, admin: Token, fleet: Token, evil: Token, database: Database
) -> None:
    """Alone as it may come, and whoever sent the winner that it replaced."""
    ops = [Token(database, name, "admin") for name in ("first", "later")]
    post(client, fleet, record(1), record(2), record(3).model_copy(update={"winner": None}))
    won = Winner(config=config(128), at=START)
    for m in (1, 3, 4):
        post(client, evil, Record(scenario=scenario(m), winner=won), at="pr-1")
    for token in ops:  # the later one changes nothing
        sent = client.post("/v1/pr-1/promote", json={"to": "main"}, headers=token.headers)
        assert sent.json() == {"records": 3}
    for token, winners in ((evil, 0), (fleet, 2), (ops[0], 3), (ops[1], 0)):
        counted = quarantine(client, admin, token=token.id, preview=True)
        assert counted["winners"] == winners, token.id


def called_wrong(m: int, *blocks: int) -> Record:
    """Return a record that calls the results of configs wrong."""
    found = Failure(kind="wrong", reason="9 of 9 differ")
    return Record(
        scenario=scenario(m),
        measurements=tuple(
            Measurement(config=config(block), failure=found, at=now(), by="eve@h200-9")
            for block in blocks
        ),
    )


def test_a_winner_that_was_called_wrong_comes_back_with_its_timing(
    client: httpx.Client, database: Database, admin: Token, fleet: Token, evil: Token
) -> None:
    """Also where its caller put a winner of its own in its place, or a second one agreed."""
    post(client, fleet, record(1), record(2))
    own = Winner(config=config(128), at=now())
    post(client, evil, called_wrong(1, 16, 32), called_wrong(2, 16))
    post(client, evil, Record(scenario=scenario(1), winner=own))
    post(client, Token(database, "accomplice"), called_wrong(2, 16))
    assert [item.winner for item in read(client, admin)] == [own, None]
    taken = quarantine(client, admin, token="evil")
    assert read(client, admin)[0] == record(1)
    assert read(client, admin)[1].winner is None
    quarantine(client, admin, token="accomplice")
    assert read(client, admin) == [record(1), record(2)]
    undo(client, admin, taken["id"])
    assert [item.winner for item in read(client, admin)] == [own, None]
    quarantine(client, admin, token="evil")
    assert quarantine(client, admin, token="fleet", preview=True)["winners"] == 2
    assert quarantine(client, admin, token="evil", preview=True)["records"] == 0


EQUAL = {"out_ptr": OutputVerdict(outcome="equal")}
NOISY = {"out_ptr": OutputVerdict(outcome="not_compared", reason="not repeatable")}


def test_a_comparison_is_taken_back_with_who_made_it(
    client: httpx.Client, admin: Token, fleet: Token, evil: Token
) -> None:
    """The winner that was not compared stands again, and is compared by the next machine."""
    tuned = record(1)
    assert tuned.winner is not None
    unsaid = tuned.model_copy(update={"winner": tuned.winner.model_copy(update={"results": NOISY})})
    compared = tuned.winner.model_copy(update={"results": EQUAL})
    addition = Record(scenario=scenario(1), winner=compared)
    post(client, fleet, unsaid)
    post(client, evil, addition)
    assert read(client, admin)[0].winner == compared
    post(client, fleet, unsaid)
    assert read(client, admin)[0].winner == compared, "one that was not compared replaces none"
    quarantine(client, admin, token="evil")
    assert read(client, admin) == [unsaid]


def test_a_promotion_replaces_no_compared_winner_by_one_that_was_not(
    client: httpx.Client, admin: Token, fleet: Token
) -> None:
    tuned = record(1)
    assert tuned.winner is not None
    compared = tuned.winner.model_copy(update={"results": EQUAL})
    other = Winner(config=config(64), at=now(), results=NOISY)
    post(client, fleet, tuned.model_copy(update={"winner": compared}))
    post(client, fleet, tuned.model_copy(update={"winner": other}), at="pr-1")
    client.post("/v1/pr-1/promote", json={"to": "main"}, headers=admin.headers)
    assert read(client, admin)[0].winner == compared
    checked = other.model_copy(update={"results": EQUAL})
    post(client, fleet, Record(scenario=scenario(1), winner=checked), at="pr-1")
    client.post("/v1/pr-1/promote", json={"to": "main"}, headers=admin.headers)
    promoted = read(client, admin)[0].winner
    assert promoted is not None
    assert (promoted.config, promoted.results) == (config(64), EQUAL)
