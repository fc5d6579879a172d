"""Bulk writes of records, their deletion, and the list of contexts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from pydantic import BaseModel
from sqlalchemy import Connection

from dejavu_cache.model.merge import part_digest, part_digests
from dejavu_cache.model.record import FORMAT, Record, RecordSet, Winner
from dejavu_cache.model.scenario import canonical_json

from ..errors import InvalidRequestError, TooLargeError
from ..storage import contexts, misses, recalls, records
from ..storage.clock import database_time
from ..storage.database import Database
from . import merging
from .access import Principal
from .log import write_log
from .recalls import recall_records, withhold

__all__ = [
    "Merged",
    "check_record_set",
    "delete_records",
    "list_contexts",
    "merge_record_set",
    "post_records",
]

MOST_CHARACTERS = 64 * 1024
"""Characters of a context, many of which are listed in one answer; a real one has about 1000."""
_PART = 100
"""Records that are merged at a time."""


class Merged(BaseModel):
    """Counts of a bulk write; sent again, it adds no measurement."""

    records: int
    """Records in the request."""
    measurements: int
    """New measurements that readers get."""
    beside: int
    """New measurements that contradict an earlier one and are only stored."""
    refused: int = 0
    """Measurements that were not stored; absent if none.

    They were recalled, are older than their record's deletion, cannot be true (a timing that no
    launch can have, a time ahead of the server's), or are more than a record holds.
    """


def post_records(
    database: Database, principal: Principal, namespace: str, sent: RecordSet, limit: int
) -> Merged:
    """Merge a record set in one transaction.

    Args:
        database: The server's database.
        principal: Who sends it; needs the role `write`.
        namespace: The namespace to write to.
        sent: The record set.
        limit: The largest number of records in one request.

    Raises:
        AccessDeniedError: The principal lacks the role `write`.
        InvalidRequestError: As in `check_record_set`.
        TooLargeError: The record set has more than `limit` records, or a record would outgrow what
            one may hold; nothing was stored.
    """
    principal.require("write", namespace)
    check_record_set(sent, limit)
    with database.write() as connection:
        return merge_record_set(connection, principal, namespace, sent)


def check_record_set(sent: RecordSet, limit: int) -> None:
    """Check the format, the context and the number of records of a record set.

    Raises:
        InvalidRequestError: The record set has a newer format than this server's, or its context
            has over `MOST_CHARACTERS`.
        TooLargeError: The record set has more than `limit` records.
    """
    if not 1 <= sent.format <= FORMAT:
        raise InvalidRequestError(
            f"format {sent.format} is not known here: this server takes 1 to {FORMAT}"
        )
    if len(sent.context.text) > MOST_CHARACTERS:
        raise InvalidRequestError(
            f"the context has {len(sent.context.text)} characters, and may have {MOST_CHARACTERS}: "
            "shorten the values of environment variables in it"
        )
    if len(sent.records) > limit:
        raise TooLargeError(
            f"{len(sent.records)} records in one request: send at most {limit} at a time"
        )


def merge_record_set(
    connection: Connection,
    principal: Principal,
    namespace: str,
    sent: RecordSet,
    *,
    restore: bool = False,
) -> Merged:
    """Merge a record set within a transaction of the caller's.

    Args:
        connection: The write transaction.
        principal: Who sends it.
        namespace: The namespace to write to.
        sent: The record set.
        restore: Whether it brings back what was deleted.
    """
    total = Merged(records=len(sent.records), measurements=0, beside=0)
    if not sent.records:
        return total
    context_id = contexts.lock(connection, namespace, sent.context)
    into = _Target(context_id, namespace, sent.context.digest, database_time(connection))
    changed, added = False, 0
    # A part at a time, because the records of a large set do not fit into the memory together.
    for start in range(0, len(sent.records), _PART):
        part = list(sent.records[start : start + _PART])
        merged = _merge_part(connection, principal, into, part, restore=restore)
        total.measurements += merged.measurements
        total.beside += merged.beside
        total.refused += merged.refused
        changed, added = changed or merged.changed, added + merged.added
    if changed:
        contexts.bump_revision(connection, context_id, added=added, by=principal.name)
    return total


class _Target(NamedTuple):
    """The context to merge into, by its id and by its names, and the present time."""

    id: int
    namespace: str
    context: str
    present: datetime


class _MergedPart(NamedTuple):
    """Counts as in `Merged`, whether a record changed, and the number of new records."""

    measurements: int
    beside: int
    refused: int
    changed: bool
    added: int


def _merge_part(
    connection: Connection,
    principal: Principal,
    into: _Target,
    sent: Sequence[Record],
    *,
    restore: bool,
) -> _MergedPart:
    """Merge some of a record set's records into a locked context."""
    scenarios = sorted({record.scenario.digest for record in sent})
    before = records.load(connection, into.id, scenarios)
    recalled = recalls.load(connection, into.namespace, into.context, scenarios)
    if restore:
        _lift_recalls(connection, into, sent, recalled)
        welcome, refused = sent, 0
    else:
        welcome, refused = withhold(sent, recalled, before)
    after: dict[str, Record] = dict(before)
    claims: list[records.Claim] = []
    replacing: list[records.Claim] = []
    displaced: dict[str, list[Winner]] = {}
    pins = principal.may("admin", into.namespace)
    for record in welcome:
        digest = record.scenario.digest
        current = after.get(digest)
        merged = merging.add(current, record, pins=pins, present=into.present)
        after[digest] = merged.record
        if current is not None and current.winner not in (None, merged.record.winner):
            displaced.setdefault(digest, []).append(current.winner)
        claims += merged.claims
        replacing += merged.replacing
        refused += merged.refused
    changed = [record for digest, record in after.items() if before.get(digest) != record]
    winner_senders = {
        record.scenario.digest: principal.name
        for record in changed
        if record.winner != _winner_of(before.get(record.scenario.digest))
    }
    sizes = records.save(connection, into.id, changed, winner_senders=winner_senders)
    _add_displaced(connection, into.id, displaced)
    _recall_replaced_pins(connection, into, before, after)
    if not restore:  # an admin's import is not stopped in its middle, and logged as a whole
        _check_sizes(sizes, before, after)
        _log_pins(connection, principal, into, before, changed)
    standing, beside = records.add_claims(connection, into.id, claims, principal.name)
    for claim in replacing:
        replacement = (claim.measurement.config.digest, claim.digest)
        records.replace_standing(connection, into.id, claim.scenario, [replacement])
    tuned = [digest for digest, record in after.items() if record.winner or record.pinned]
    misses.drop_tuned(connection, into.id, sorted(tuned))
    added = len(after) - len(before)
    return _MergedPart(standing, beside, refused, changed=bool(changed), added=added)


def _add_displaced(
    connection: Connection, context_id: int, displaced: Mapping[str, list[Winner]]
) -> None:
    """Keep the winners that were called wrong or not compared, in case that is taken back."""
    joined = records.load_displaced(connection, context_id, sorted(displaced))
    for digest, winners in displaced.items():
        kept = joined.setdefault(digest, [])
        kept += [winner for winner in winners if winner not in kept]
    records.save_displaced(connection, context_id, joined)


def _recall_replaced_pins(
    connection: Connection, into: _Target, before: Mapping[str, Record], after: Mapping[str, Record]
) -> None:
    """Recall from copies the pins that others have replaced, as when they are set one by one."""
    replaced = {
        digest: [part_digest(record.pin)]
        for digest, record in before.items()
        if record.pin is not None and after[digest].pin != record.pin
    }
    recalls.add_parts(connection, into.namespace, into.context, replaced)


def _log_pins(
    connection: Connection,
    principal: Principal,
    into: _Target,
    before: Mapping[str, Record],
    changed: Sequence[Record],
) -> None:
    """Log the pins that came within records: they decide what runs, as any other pin does."""
    for record in changed:
        stored = before.get(record.scenario.digest)
        if record.pin is None or record.pin == (stored.pin if stored else None):
            continue
        write_log(
            connection,
            principal,
            "unpin" if record.pin.config is None else "pin",
            into.namespace,
            contexts.kernel_of(connection, into.id),
            context=into.context,
            scenario=str(record.scenario),
            config=str(record.pin.config or (stored.pinned if stored else None)),
            by=record.pin.by,
        )


def _check_sizes(
    sizes: Mapping[str, int], before: Mapping[str, Record], after: Mapping[str, Record]
) -> None:
    """Check how large records have become, all given by the digests of their scenarios.

    Raises:
        TooLargeError: One outgrew `MOST_RECORD_CHARACTERS`; the transaction must be rolled back.
    """
    for digest, size in sizes.items():
        if size > merging.MOST_RECORD_CHARACTERS:
            stored = before.get(digest)
            length = len(canonical_json(stored)) if stored else 0
            merging.check_growth(after[digest].scenario, length, size)


def _winner_of(record: Record | None) -> Winner | None:
    return record.winner if record else None


def _lift_recalls(
    connection: Connection, into: _Target, sent: Sequence[Record], recalled: Collection[str]
) -> None:
    """Take back the recalls of what is sent; `recalled` are the scenarios that have any."""
    parts: dict[str, set[str]] = {}
    for record in sent:
        if record.scenario.digest in recalled:
            without_pin = record.model_copy(update={"pin": None})
            parts.setdefault(record.scenario.digest, set()).update(part_digests(without_pin))
    recalls.lift(connection, into.namespace, into.context, parts)


def delete_records(
    database: Database,
    principal: Principal,
    namespace: str,
    context: str,
    scenarios: Sequence[str] | None,
) -> int:
    """Delete records of a context, and recall them from the copies that other machines have.

    Args:
        database: The server's database.
        principal: Who asks; needs the role `admin`.
        namespace: The namespace of the context.
        context: The digest of the context.
        scenarios: The digests of the scenarios to delete, or None for all.

    Returns:
        The number of records deleted.
    """
    principal.require("admin", namespace)
    with database.write() as connection:
        context_id = contexts.lock_existing(connection, namespace, context)
        if context_id is None:
            return 0
        kernel = contexts.kernel_of(connection, context_id)
        recall_records(connection, namespace, context, context_id, scenarios)
        deleted = records.delete_records(connection, context_id, scenarios)
        if deleted:
            contexts.bump_revision(connection, context_id, added=-deleted, by=principal.name)
            write_log(
                connection,
                principal,
                "delete",
                namespace,
                kernel,
                context=context,
                scenarios=scenarios,
                records=deleted,
            )
        return deleted


def list_contexts(
    database: Database,
    principal: Principal,
    namespace: str,
    kernel: str | None,
    after: str | None,
    limit: int,
) -> list[tuple[str, str]]:
    """List digests and texts of contexts, one more than `limit` if there is a next page."""
    principal.require("read", namespace)
    with database.read() as connection:
        return contexts.list_contexts(connection, namespace, kernel, after, limit + 1)
