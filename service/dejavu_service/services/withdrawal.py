"""What one context loses when the measurements and winners of a writer go."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection

from dejavu_cache.model.merge import part_digest
from dejavu_cache.model.record import Measurement, Record, Winner
from dejavu_cache.model.scenario import canonical_json

from ..storage import contexts, quarantine, recalls, records
from ..storage.clock import database_time
from ..storage.quarantine import Part, SentRow, WriterFilter
from .access import Principal
from .merging import add

__all__ = ["Withdrawal", "WithdrawnContext", "plan_withdrawal", "withdraw"]


class WithdrawnContext(NamedTuple):
    """A context by its id, and by its namespace and digest."""

    id: int
    namespace: str
    digest: str


class Withdrawal(NamedTuple):
    """What a writer's leaving changes in one context.

    Attributes:
        records: What is left of each record, by the digest of its scenario; None if nothing.
        rows: The measurements that go.
        parts: The same measurements, and winners, to be kept in quarantine.
        recalled: Digests of what no copy may keep, by the digest of its scenario.
        winner_senders: Who measured the winners that stand again, by the digest of their scenario.
    """

    records: dict[str, Record | None]
    rows: list[SentRow]
    parts: list[Part]
    recalled: dict[str, list[str]]
    winner_senders: dict[str, str]


def plan_withdrawal(
    connection: Connection, context_id: int, scenarios: Sequence[str], wanted: WriterFilter
) -> Withdrawal:
    """Return what goes of some scenarios, and what then stands; nothing is written."""
    loaded = quarantine.load_measurements(connection, context_id, scenarios, wanted)
    winner_senders = quarantine.load_winner_senders(connection, context_id, scenarios, wanted)
    displaced = records.load_displaced(connection, context_id, scenarios)
    present = database_time(connection)
    standing_again: dict[str, str] = {}
    remaining: dict[str, Record | None] = {}
    rows: list[SentRow] = []
    parts: list[Part] = []
    recalled: dict[str, list[str]] = {}
    for scenario, record in records.load(connection, context_id, scenarios).items():
        sent = [row for row, is_wanted in loaded[scenario] if is_wanted]
        others = [row for row, is_wanted in loaded[scenario] if not is_wanted]
        winner = record.winner
        if not sent and winner is None:
            continue  # the sender of its winner is noted still, and the winner is gone
        rows += sent
        left = _without(record, sent, others, present)
        text = record.scenario.text
        parts += [Part(context_id, text, False, row.text, row.sender) for row in sent]
        recalled[scenario] = [row.digest for row in sent]
        lost = {row.config for row in sent if row.stands}
        if winner is not None and (scenario in winner_senders or winner.config.digest in lost):
            sender = winner_senders.get(scenario) or next(
                row.sender for row in sent if row.config == winner.config.digest
            )
            parts.append(Part(context_id, text, True, canonical_json(winner), sender))
            left = left.model_copy(update={"winner": None})
            if scenario in winner_senders:  # another's is recalled with its measurement
                recalled[scenario].append(part_digest(winner))
        senders = {row.config: row.sender for row in reversed(others)}
        earlier = [
            former
            for former in displaced.get(scenario, ())
            if former != winner and former.config.digest in senders
        ]
        again = None if left.winner else _first_timed(earlier, left)
        if again is not None:
            left = left.model_copy(update={"winner": again})
            standing_again[scenario] = senders[again.config.digest]
        is_empty = not (left.measurements or left.winner or left.pin)
        remaining[scenario] = None if is_empty else left
    return Withdrawal(remaining, rows, parts, recalled, standing_again)


def _first_timed(winners: Iterable[Winner], record: Record) -> Winner | None:
    """Return the first of several winners of whose config a record has a timing."""
    timed = {item.config for item in record.measurements if item.failure is None}
    return next((winner for winner in winners if winner.config in timed), None)


def _without(
    record: Record, sent: Sequence[SentRow], others: Sequence[SentRow], present: datetime
) -> Record:
    """Return a record as it would be if a writer's measurements had never come."""
    lost = {row.config for row in sent if row.stands}
    kept = tuple(
        measurement for measurement in record.measurements if measurement.config.digest not in lost
    )
    left = record.model_copy(update={"measurements": kept})
    for row in others:
        if row.config in lost:
            measurement = Measurement.model_validate_json(row.text)
            again = Record(scenario=record.scenario, measurements=(measurement,))
            left = add(left, again, pins=False, present=present).record
    return left


def withdraw(
    connection: Connection, context: WithdrawnContext, withdrawal: Withdrawal, principal: Principal
) -> None:
    """Delete what goes from the records, and recall it from all copies."""
    left = {digest: record for digest, record in withdrawal.records.items() if record is not None}
    empty = [digest for digest in withdrawal.records if digest not in left]
    quarantine.delete_measurements(connection, withdrawal.rows)
    records.save(connection, context.id, left.values(), winner_senders=withdrawal.winner_senders)
    lost = {(row.scenario, row.config) for row in withdrawal.rows if row.stands}
    for scenario, record in left.items():
        standing = [
            (measurement.config.digest, part_digest(measurement))
            for measurement in record.measurements
            if (scenario, measurement.config.digest) in lost
        ]
        records.replace_standing(connection, context.id, scenario, standing)
        # What a promotion had replaced was recalled, and stands again.
        given_back = {scenario: [digest for _, digest in standing]}
        recalls.lift(connection, context.namespace, context.digest, given_back)
    deleted = records.delete_records(connection, context.id, empty)
    recalls.add_parts(connection, context.namespace, context.digest, withdrawal.recalled)
    contexts.bump_revision(connection, context.id, added=-deleted, by=principal.name)
