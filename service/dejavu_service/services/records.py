"""Taking records in, and dropping them."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel
from sqlalchemy import Connection

from dejavu_cache.model.record import FORMAT, Record, RecordSet

from ..problems import ProblemError
from ..storage import contexts, misses, records
from ..storage.database import Database
from .access import Principal
from .merging import add

__all__ = ["Merged", "check", "drop", "listed", "merge", "one", "post"]


class Merged(BaseModel):
    """What a bulk write did; sent again, it adds no measurement."""

    records: int
    """Records that were sent."""
    measurements: int
    """Measurements that are new and stand."""
    beside: int
    """Measurements that are new and contradict one that stands."""


def post(database: Database, who: Principal, namespace: str, sent: RecordSet, most: int) -> Merged:
    """Merges a record set, in one transaction.

    Raises:
        ProblemError: 403, 413 with more than `most` records, or 422 for a newer format.
    """
    who.require("write", namespace)
    check(sent, most)
    with database.write() as connection:
        return merge(connection, who, namespace, sent)


def check(sent: RecordSet, most: int) -> None:
    """Refuses a record set that is too large or too new."""
    if not 1 <= sent.format <= FORMAT:
        raise ProblemError(
            422, f"format {sent.format} is not known here: this server takes 1 to {FORMAT}"
        )
    if len(sent.records) > most:
        raise ProblemError(
            413, f"{len(sent.records)} records in one request: send at most {most} at a time"
        )


def merge(connection: Connection, who: Principal, namespace: str, sent: RecordSet) -> Merged:
    """Merges a record set inside a transaction."""
    if not sent.records:
        return Merged(records=0, measurements=0, beside=0)
    context_id = contexts.lock(connection, namespace, sent.context)
    scenarios = sorted({record.scenario.digest for record in sent.records})
    before = records.load(connection, context_id, scenarios)
    after: dict[str, Record] = dict(before)
    claims: list[records.Claim] = []
    for record in sent.records:
        merged = add(after.get(record.scenario.digest), record, pins=who.may("admin", namespace))
        after[record.scenario.digest] = merged.record
        claims += merged.claims
    changed = [record for digest, record in after.items() if before.get(digest) != record]
    records.save(connection, context_id, changed)
    standing, beside = records.add_claims(connection, context_id, claims, who.name)
    misses.drop_tuned(connection, context_id, scenarios)
    if changed:
        contexts.changed(connection, context_id, len(after) - len(before))
    return Merged(records=len(sent.records), measurements=standing, beside=beside)


def drop(
    database: Database, who: Principal, namespace: str, digest: str, scenarios: Sequence[str] | None
) -> int:
    """Drops records of a context, some or all, and says how many there were."""
    who.require("admin", namespace)
    with database.write() as connection:
        context_id = contexts.lock_known(connection, namespace, digest)
        gone = 0 if context_id is None else records.drop(connection, context_id, scenarios)
        if gone and context_id is not None:
            contexts.changed(connection, context_id, -gone)
        return gone


def one(
    database: Database, who: Principal, namespace: str, digest: str, scenario: str
) -> str | None:
    """One record's text, or None."""
    who.require("read", namespace)
    with database.read() as connection:
        return records.one(connection, namespace, digest, scenario)


def listed(
    database: Database,
    who: Principal,
    namespace: str,
    kernel: str | None,
    after: str | None,
    limit: int,
) -> list[tuple[str, str]]:
    """Digests and texts of contexts, and one more than `limit` if there are more."""
    who.require("read", namespace)
    with database.read() as connection:
        return contexts.listed(connection, namespace, kernel, after, limit + 1)
