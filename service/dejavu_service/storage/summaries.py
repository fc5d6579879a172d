"""What pages count: records in numbers, differences of namespaces, what is tuned and missed."""

from collections.abc import Sequence
from datetime import date, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from dejavu_cache.model.scenario import Context

from ..errors import TooLargeError
from .sql import byte_length, contains, day_of, epoch, insert
from .tables import contexts, days, misses, parts, records

MOST_BYTES = 64 * 2**20
"""Bytes of contexts that are loaded at once; one has about 1000."""
MOST_SCENARIOS = 100_000
"""Scenarios of a context that are loaded at once."""

_own = records.c
# Share by which the chosen config is slower than the best; null if it is not known.
_excess = sa.case((_own.best > 0, _own.median / _own.best - 1))
_is_uncompared = sa.and_(_own.chosen.is_not(None), ~_own.pinned, _own.compared.is_(None))
_SUMMARY = sa.select(
    _own.scenario, _own.scenario_text, _own.chosen, _own.median, _own.best, _own.slowest,
    _own.configs, _own.failed, _own.pinned, _own.compared,
    _excess.label("excess"), _is_uncompared.label("is_uncompared"),
).where(_own.text.is_not(None))  # fmt: skip


def load(connection: sa.Connection, context_id: int, scenario: str | None = None) -> dict[str, Any]:
    """Load a context's records in numbers, all or one, by their scenario's digest.

    Raises:
        TooLargeError: There are more than `MOST_SCENARIOS`.
    """
    query = _SUMMARY.where(records.c.context_id == context_id).limit(MOST_SCENARIOS + 1)
    if scenario is not None:
        query = query.where(records.c.scenario == scenario)
    rows = connection.execute(query).all()
    if len(rows) > MOST_SCENARIOS:
        raise TooLargeError(
            f"this context has over {MOST_SCENARIOS} records, the most that a page loads: see by  "
            "dejavu-cache quarantine list --writers  who wrote so many"
        )
    return {row.scenario: row for row in rows}


_ours, _theirs = records.alias("ours"), records.alias("theirs")
_there = contexts.alias("there")


def count_differences(
    connection: sa.Connection, ids: Sequence[int], their_ids: Sequence[int]
) -> dict[int, dict[str, int]]:
    """Compare contexts with the same ones of another namespace, by their id.

    Returns:
        The number of records that the other one lacks (`absent`), of those that have another config
        there (`differing`), and of the latter that are pinned there (`pinned`).
    """
    differs = sa.and_(_theirs.c.seconds.is_not(None), _theirs.c.chosen != _ours.c.chosen)
    counted = {
        "absent": _theirs.c.seconds.is_(None),
        "differing": differs,
        "pinned": sa.and_(differs, _theirs.c.pinned),
    }
    # Without the ids of both sides, Postgres would read all records of all namespaces.
    same = sa.and_(
        _theirs.c.context_id == _there.c.id,
        _theirs.c.context_id.in_(their_ids),
        _theirs.c.scenario == _ours.c.scenario,
    )
    query = (
        sa.select(
            contexts.c.id,
            *(
                sa.func.sum(sa.case((what, 1), else_=0)).label(name)
                for name, what in counted.items()
            ),
        )
        .join(_there, _there.c.digest == contexts.c.digest)
        .join(_ours, _ours.c.context_id == contexts.c.id)
        .outerjoin(_theirs, same)
        .where(contexts.c.id.in_(ids), _there.c.id.in_(their_ids), _ours.c.seconds.is_not(None))
        .group_by(contexts.c.id)
    )
    return {row.id: dict(zip(counted, row[1:], strict=True)) for row in connection.execute(query)}


class ContextRow(NamedTuple):
    """A context, what is tuned and missed in it, and what that cost; times in seconds since 1970.

    Attributes:
        id: The id in the database.
        text: The context as JSON.
        records: The number of its records.
        missing: The number of scenarios that were missed in it.
        seconds: The cost of its measurements.
        fetches: Answers with records to machines that had none of them.
        created_at: When it was first heard of.
        used_at: When it was last read or written, to a day.
        changed_at: When its records changed last.
        changed_by: Who changed them; None if that was not noted.
    """

    id: int
    digest: str
    text: str
    records: int
    missing: int
    seconds: float
    fetches: int
    created_at: float
    used_at: float
    changed_at: float
    changed_by: str | None

    @property
    def context(self) -> Context:
        """The context."""
        return _parse_context(self.text)

    @property
    def device(self) -> str:
        """Name of the GPU."""
        return self.context.environment.device.name

    @property
    def triton(self) -> str:
        """Version of Triton."""
        return self.context.environment.triton

    @property
    def source(self) -> str:
        """Hash of the kernel's source."""
        return self.context.kernel.source

    @property
    def saved(self) -> float:
        """Seconds that reuse saved, estimated.

        A machine fetches because it wants one scenario at least, which it need not tune then.
        """
        return self.fetches * self.seconds / self.records if self.records else 0.0


# A page shows the same contexts as the one before it, and parsing one takes 0.1 ms.
_parse_context = lru_cache(4096)(Context.model_validate_json)

_missing = sa.select(sa.func.count()).where(misses.c.context_id == contexts.c.id).scalar_subquery()
_seconds = (
    sa.select(sa.func.coalesce(sa.func.sum(records.c.seconds), 0.0))
    .where(records.c.context_id == contexts.c.id)
    .scalar_subquery()
)
_COMPUTED = {
    "missing": _missing,
    "seconds": _seconds,
    "changed_at": sa.func.coalesce(contexts.c.changed_at, contexts.c.created_at),
}
_CONTEXT = [
    _COMPUTED[name].label(name) if name in _COMPUTED else contexts.c[name]
    for name in ContextRow._fields
]


def load_contexts(
    connection: sa.Connection, namespace: str, kernel: str | None = None, digest: str | None = None
) -> list[ContextRow]:
    """Load contexts with records or misses: of a namespace, of a kernel, or one.

    Raises:
        TooLargeError: They have more than `MOST_BYTES`.
    """
    clauses = [contexts.c.namespace == namespace, (contexts.c.records > 0) | (_missing > 0)]
    if digest is not None:
        clauses.append(contexts.c.digest == digest)
    if kernel is not None:
        clauses.append(contexts.c.kernel == kernel)
    total = sa.select(sa.func.sum(byte_length(contexts.c.text))).where(*clauses)
    size = int(connection.execute(total).scalar() or 0)
    if size > MOST_BYTES:
        raise TooLargeError(
            f"the contexts of {kernel or 'all kernels'} in {namespace!r} have {size} bytes, and a "
            f"page loads at most {MOST_BYTES}: see by  dejavu-cache quarantine list --writers  who "
            "wrote so many, and prune those that nobody uses"
        )
    query = sa.select(*_CONTEXT).where(*clauses).order_by(contexts.c.kernel, contexts.c.digest)
    return [ContextRow(*row) for row in connection.execute(query)]


_ids: sa.BindParameter[Any] = sa.bindparam("ids", expanding=True)
_known = sa.union(
    sa.select(records.c.scenario).where(
        records.c.context_id.in_(_ids), records.c.seconds.is_not(None)
    ),
    sa.select(misses.c.scenario).where(misses.c.context_id.in_(_ids)),
).subquery()
_COUNT_KNOWN = sa.select(sa.func.count()).select_from(_known)
"""Made once: making it takes longer than the database needs for a kernel."""
_MOST_CONTEXTS = 10_000


def count_known(connection: sa.Connection, ids: Sequence[int]) -> int:
    """Count the different scenarios, tuned or missed, of contexts."""
    return connection.execute(_COUNT_KNOWN, {"ids": ids[:_MOST_CONTEXTS]}).scalar_one()


def count_measurements(own: sa.Select[Any]) -> sa.Subquery:
    """Return who wrote to contexts, how many measurements nobody has hidden, and when last.

    They are counted in the order of their index, which has all of it: joined with contexts before
    that, 3,000,000 of them would take a second more.
    """
    key = (parts.c.context_id, parts.c.sender, parts.c.measured_by)
    count, last = (
        sa.func.count().label("measurements"),
        sa.func.max(parts.c.received_at).label("last"),
    )
    is_counted = (parts.c.kind == "measurement", parts.c.hidden_by.is_(None))
    return (
        sa.select(*key, count, last)
        .where(parts.c.context_id.in_(own), *is_counted)
        .group_by(*key)
        .subquery()
    )


def list_writers(
    connection: sa.Connection, namespace: str, since: float, actor: str, limit: int
) -> list[dict[str, Any]]:
    """List who sent measurements since a time and whose they are, by context, the latest first.

    Only contexts whose records changed since then are searched, and unless a part of a name is
    asked for (`actor`), as many of them as rows are wanted, those that changed last.
    """
    changed = sa.select(contexts.c.id).where(
        contexts.c.namespace == namespace, contexts.c.changed_at >= since
    )
    if not actor:
        changed = changed.order_by(contexts.c.changed_at.desc()).limit(limit)
    writers = count_measurements(changed)
    query = (
        sa.select(
            writers.c.last.label("last_at"),
            writers.c.sender.label("sent_by"),
            writers.c.measured_by,
            contexts.c.text.label("context"),
            writers.c.measurements,
        )
        .join(contexts, contexts.c.id == writers.c.context_id)
        .where(writers.c.last >= since)
        .order_by(writers.c.last.desc(), writers.c.sender, contexts.c.digest)
        .limit(limit)
    )
    if actor:
        query = query.where(
            contains(writers.c.sender, actor) | contains(writers.c.measured_by, actor)
        )
    return [
        row._asdict() | {"context": _parse_context(row.context)}
        for row in connection.execute(query)
    ]


def add_to_day(
    connection: sa.Connection, namespace: str, *, missed: int = 0, reused: int = 0
) -> None:
    """Add to what today's programs missed and reused, as the last statement of a transaction.

    All writers of a namespace change the same row, and wait for who holds it.
    """
    if not missed and not reused:
        return
    row = {"namespace": namespace, "missed": missed, "reused": reused}
    statement = insert(connection, days).values(day=day_of(epoch()), **row)
    added = {name: days.c[name] + statement.excluded[name] for name in ("missed", "reused")}
    connection.execute(
        statement.on_conflict_do_update(index_elements=["namespace", "day"], set_=added)
    )


def count_by_day(
    connection: sa.Connection, namespace: str, until: date, number: int
) -> list[dict[str, Any]]:
    """Count what was tuned, missed and reused on each of a number of days (UTC), the last `until`.

    A record that was tuned again counts on the day of its last change, with all its measurements.
    """
    end = (until - date(1970, 1, 1)).days
    first = end - number + 1
    day = day_of(records.c.changed_at)
    tuned = (
        sa.select(day, sa.func.count(records.c.seconds), sa.func.sum(records.c.seconds))
        .join(contexts, contexts.c.id == records.c.context_id)
        .where(
            contexts.c.namespace == namespace,
            records.c.changed_at >= first * 86400.0,
            records.c.seconds.is_not(None),
        )
        .group_by(day)
    )
    counted = sa.select(days.c.day, days.c.missed, days.c.reused).where(
        days.c.namespace == namespace, days.c.day >= first
    )
    rows: dict[int, dict[str, Any]] = {
        number_of_day: {
            "day": date(1970, 1, 1) + timedelta(number_of_day),
            "tuned": 0, "seconds": 0.0, "missed": 0, "reused": 0,
        }
        for number_of_day in range(first, end + 1)
    }  # fmt: skip
    for query, names in ((tuned, ("tuned", "seconds")), (counted, ("missed", "reused"))):
        for number_of_day, *counts in connection.execute(query):
            if number_of_day in rows:
                rows[number_of_day] |= zip(names, counts, strict=True)
    return list(rows.values())


def list_namespaces(connection: sa.Connection) -> list[dict[str, Any]]:
    """List all namespaces with the numbers of their contexts and records, and the last change."""
    query = (
        sa.select(
            contexts.c.namespace,
            sa.func.count().label("contexts"),
            sa.cast(sa.func.sum(contexts.c.records), sa.Integer).label("records"),
            sa.func.max(contexts.c.changed_at).label("changed_at"),
        )
        .group_by(contexts.c.namespace)
        .order_by(contexts.c.namespace)
    )
    return [row._asdict() for row in connection.execute(query)]
