"""What stands in a record: the first measurement of a config, until an act takes it away.

One set of rules, whether a part arrives from a client, from a backup, by a promotion, or because an
act was undone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime

from dejavu_cache.model.record import MOST_MEASUREMENTS, Measurement, Pin, Record, Winner
from dejavu_cache.model.scenario import Scenario, canonical_json, is_from_future, moment_after
from dejavu_cache.model.selection import is_credible

from ..errors import TooLargeError
from ..storage.records import Part, StoredRecord

__all__ = [
    "MOST_RECORD_CHARACTERS",
    "give_back",
    "override",
    "receive",
    "replace_pin",
    "withdraw",
]

MOST_RECORD_CHARACTERS = 32 * 2**20
"""Characters to which a record's JSON may grow: as many as one request brings, and half of what a
client reads in an answer if each takes four bytes."""


def receive(
    record: StoredRecord,
    sent: Record,
    sender: str,
    present: datetime,
    *,
    act: str,
    pins: bool,
    restore: bool,
) -> int:
    """Merge what a client sent into a record.

    A measurement of a config that has one is kept beside it, unless it overrules that. Left out are
    measurements that are hidden or older than the record's deletion, that were skipped for want of
    memory, that no launch can have, that are dated ahead, and those of new configs for which the
    record has no room. A winner goes with its measurement.

    Args:
        record: The stored record; a new one is not visible yet.
        sent: The record that was sent.
        sender: Who sent it.
        present: The present time, by a clock that all replicas share: each would otherwise take
            back what it holds to be dated ahead, and others do not.
        act: The id of the act that hides a pin which is replaced.
        pins: Whether a pin in `sent` counts, which only an admin's does.
        restore: Whether what is hidden comes back, as an admin's import brings it.

    Returns:
        The number of measurements that were refused.
    """
    refused, arrived, blocked = 0, False, set()
    for measurement in sent.measurements:
        part = _admit(record, measurement, sender, restore)
        if part is None:
            refused += 1
            blocked.add(measurement.config)
            continue
        arrived = True
        if not measurement.skipped:
            is_possible = measurement.failure is not None or is_credible(measurement)
            is_true = is_possible and not is_from_future(measurement.at, present)
            refused += not (is_true and _arrive(record, part))
    won, winner, pin = sent.winner, None, None
    if won and won.config not in blocked and not is_from_future(won.at, present):
        winner = _admit(record, won, sender, restore)
    if sent.pin is not None and pins:
        pin = _admit(record, sent.pin, sender, restore)
    if record.is_visible or arrived or winner or pin or not _was_recalled(record):
        record.is_visible = True
        if sent.launches:
            record.add_launches(launch.text for launch in sent.launches)
        _settle_winner(record, [winner] if winner else [])
        if pin is not None and (
            record.pin is None or _rank(pin.model, present) > _rank(record.pin.model, present)
        ):
            replace_pin(record, pin, act)
    return refused


def _admit(
    record: StoredRecord, model: Measurement | Winner | Pin, sender: str, restore: bool
) -> Part | None:
    """Return a part; None if it was taken back, or is older than the deletion of its record."""
    part = Part.of(model, sender)
    stored = record.parts.get(part.digest)
    is_old = record.deleted_at is not None and model.at.timestamp() <= record.deleted_at
    is_hidden = stored is not None and stored.hidden_by is not None
    return None if (is_old or is_hidden) and not restore else part


def _was_recalled(record: StoredRecord) -> bool:
    hidden = any(part.hidden_by is not None for part in record.parts.values())
    return hidden or record.deleted_at is not None


def _arrive(record: StoredRecord, part: Part) -> bool:
    """Let a measurement arrive; return False if the record has no room for it.

    What stands is never displaced for want of room, so that nobody can empty a record by filling
    it.
    """
    standing = record.measurements.get(part.config)
    if standing is None:
        if len(record.measurements) >= MOST_MEASUREMENTS:
            return False
        record.stand(part)
    elif standing.digest != part.digest:
        if _overrules(part.model, standing.model):
            record.stand(part)
        else:
            record.keep(part)
    return True


def _overrules(measurement: Measurement, standing: Measurement) -> bool:
    """Return whether a measurement replaces the one that stands, which came first.

    It does if it found wrong results; if it is a timing and the other a failure, which may be one
    machine's; or if it is a timing over all cases of the other one, and over more.
    """
    if measurement.is_wrong or standing.is_wrong:
        return measurement.is_wrong and not standing.is_wrong
    more_cases = set(measurement.cases or ()) > set(standing.cases or ())
    return is_credible(measurement) and (not is_credible(standing) or more_cases)


def _settle_winner(record: StoredRecord, candidates: Iterable[Part]) -> None:
    """Let the first winner stand that was compared, or else the first; what stands comes first.

    Those whose config is known to compute wrong results do not count.
    """
    chosen = None
    for part in (record.winner, *candidates):
        timing = part and record.measurements.get(part.config)
        if part is None or (timing is not None and timing.model.is_wrong):
            continue
        if chosen is None or (part.model.is_compared and not chosen.model.is_compared):
            chosen = part
    if chosen is not record.winner:
        if record.winner is not None:
            record.fall(record.winner)
        if chosen is not None:
            record.stand(chosen)


def _earlier_winners(record: StoredRecord) -> list[Part]:
    """Return the winners that others replaced and that may stand again, in their order.

    They need a timing, unless their config was never measured.
    """
    measured = {part.config for part in record.parts.values() if part.kind == "measurement"}
    timed = {config for config, part in record.measurements.items() if "failure" not in part.value}
    return [
        part
        for part in record.parts.values()
        if part.kind == "winner" and part.hidden_by is None
        if part.config in timed or part.config not in measured
    ]


def replace_pin(record: StoredRecord, pin: Part, act: str) -> None:
    """Pin a config, and take the pin before it from readers in the name of an act."""
    if record.pin is not None:
        record.hide(record.pin, act)
    record.stand(pin)


def _rank(pin: Pin, present: datetime) -> tuple[bool, datetime, str]:
    return not is_from_future(pin.at, present), pin.at, canonical_json(pin)


def withdraw(
    record: StoredRecord, wanted: Collection[int], act: str, promotions: Mapping[str, float]
) -> list[Part]:
    """Take parts from readers, and let stand what would stand if they had never come.

    Args:
        record: The whole record.
        wanted: The ids of its parts, and of others' parts.
        act: The id of the act that takes them.
        promotions: The times of promotions by their id: what the last one has replaced by a part
            that goes now stands again.

    Returns:
        What was taken, with the winner whose measurement it was. Another one's winner is not
        hidden: whoever sends it again has found it by another timing.
    """
    withdrawn_parts = [part for part in record.parts.values() if part.id in wanted]
    lost = {part.config for part in withdrawn_parts if part.stands and part.kind == "measurement"}
    fallen = record.winner if record.winner and record.winner.config in lost else None
    for part in withdrawn_parts:
        record.hide(part, act)
    if fallen is not None and fallen.stands:
        record.fall(fallen)
        withdrawn_parts.append(fallen)
    for config in lost:
        others = [
            part
            for part in record.parts.values()
            if part.config == config and part.kind == "measurement"
        ]
        replaced = [part for part in others if part.hidden_by in promotions]
        if replaced:
            record.keep(max(replaced, key=lambda part: promotions[part.hidden_by or ""]))
        for part in others:
            if part.hidden_by is None:
                _arrive(record, part)
    _settle_winner(record, [part for part in _earlier_winners(record) if part is not fallen])
    record.is_visible = bool(record.measurements or record.winner or record.pin)
    return withdrawn_parts


def give_back(record: StoredRecord, act: str) -> list[Part]:
    """Let arrive again, beside what has come since, what an act has hidden.

    Returns:
        What came back, with the winner that stands again.
    """
    before = record.winner
    back = [part for part in record.parts.values() if part.hidden_by == act]
    for part in back:
        record.keep(part)
        if part.kind == "measurement":
            _arrive(record, part)
    _settle_winner(record, _earlier_winners(record))
    record.is_visible = bool(record.measurements or record.winner or record.pin)
    if record.winner is not None and record.winner not in (before, *back):
        back.append(record.winner)
    return back


def override(
    record: StoredRecord, source: StoredRecord, sender: str, act: str, present: datetime
) -> None:
    """Promote a record: its measurements and winner replace those of another one, whose pin stays.

    Args:
        record: The whole record that is to change.
        source: The record to promote.
        sender: Who promotes it, and from where.
        act: The id of the act that takes the replaced measurements from readers.
        present: The present time by the database's clock.

    Raises:
        TooLargeError: The record would have more measurements than one may have.
    """
    before = len(record.measurements)
    for theirs in source.measurements.values():
        ours = record.measurements.get(theirs.config)
        if ours is None or ours.digest != theirs.digest:
            if ours is not None:
                record.hide(ours, act)
            copy = Part(
                theirs.kind, theirs.config, theirs.digest, theirs.text, sender, theirs.measured_by
            )
            record.stand(copy)
    if len(record.measurements) > max(MOST_MEASUREMENTS, before):
        raise TooLargeError(
            f"the record of {Scenario.model_validate_json(record.scenario_text)} would have "
            f"{len(record.measurements)} measurements, and may have {MOST_MEASUREMENTS}: delete it "
            "in one of the namespaces"
        )
    record.add_launches(source.launch_texts)
    if source.winner is not None:
        current = record.winner.model if record.winner else None
        promoted = _promoted_winner(current, source.winner.model, present)
        if promoted != current:
            record.stand(Part.of(promoted, sender))
    record.is_changed |= not record.promoted
    record.is_visible = record.promoted = True


def _promoted_winner(current: Winner | None, source: Winner, present: datetime) -> Winner:
    if current is None:
        return source
    if current.is_compared != source.is_compared:  # all stores prefer the one that was compared
        return source if source.is_compared else current
    if source.config == current.config:
        return current
    # Local stores keep the later of two winners: the promoted one must be the later one.
    if source.at > current.at:
        return source
    return source.model_copy(update={"at": moment_after(current.at, present)})
