"""What pages count: records in numbers, differences of namespaces, and what is tuned or missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, and_, case, delete, func, or_, select, union

from ..errors import TooLargeError
from .sql import byte_length, chunks, epoch, excluded, insert
from .tables import contexts, misses, records, summaries

__all__ = [
    "ContextRow",
    "DifferenceCounts",
    "Summary",
    "TuningCost",
    "count_changed",
    "count_differences",
    "count_known",
    "count_misses",
    "drop",
    "list_namespaces",
    "load",
    "load_contexts",
    "load_costs",
    "load_scenarios",
    "save",
]


class Summary(NamedTuple):
    """A record in numbers; times in milliseconds, None where nothing ran.

    Attributes:
        scenario: The digest of the scenario.
        chosen: The config that readers get, as JSON.
        median: The median of the chosen config.
        best: The smallest median.
        slowest: The largest median.
        configs: The number of measured configs.
        failed: The number of configs that failed.
        seconds: The cost of all measurements.
        pinned: Whether a person chose the config.
        compared: Whether the winner's results were compared; None where they were not.
    """

    scenario: str
    chosen: str | None
    median: float | None
    best: float | None
    slowest: float | None
    configs: int
    failed: int
    seconds: float
    pinned: bool
    compared: bool | None = None

    @property
    def is_uncompared(self) -> bool:
        """Return whether readers get a winner whose results nobody has compared."""
        return self.chosen is not None and not (self.pinned or self.compared)


def save(connection: Connection, context_id: int, changed: Iterable[Summary]) -> None:
    """Insert or replace the summaries of a context's records, which must exist."""
    rows = [{"context_id": context_id, **summary._asdict()} for summary in changed]
    if not rows:
        return
    statement = insert(connection, summaries).values(changed_at=epoch())
    key = [summaries.c.context_id, summaries.c.scenario]
    replaced = {name: excluded(name) for name in Summary._fields if name != "scenario"}
    statement = statement.on_conflict_do_update(
        index_elements=key, set_={**replaced, "changed_at": epoch()}
    )
    connection.execute(statement, rows)


def drop(connection: Connection, context_id: int, scenarios: Sequence[str]) -> None:
    """Delete the summaries of scenarios that have no record any more."""
    for chunk in chunks(scenarios):
        gone = summaries.c.scenario.in_(chunk)
        connection.execute(delete(summaries).where(summaries.c.context_id == context_id, gone))


def load(
    connection: Connection, context_id: int, scenarios: Sequence[str] | None = None
) -> dict[str, Summary]:
    """Load the summaries of a context by their scenario's digest, all or some."""
    query = select(*(summaries.c[name] for name in Summary._fields)).where(
        summaries.c.context_id == context_id
    )
    queries = [query]
    if scenarios is not None:
        queries = [query.where(summaries.c.scenario.in_(chunk)) for chunk in chunks(scenarios)]
    return {row.scenario: Summary(*row) for query in queries for row in connection.execute(query)}


_ours, _theirs = summaries.alias("ours"), summaries.alias("theirs")
_there = contexts.alias("there")


class DifferenceCounts(NamedTuple):
    """Numbers of a context's records that differ from those of another namespace.

    Attributes:
        absent: How many the other namespace lacks.
        differing: How many have another config there.
        pinned: How many of those that differ are pinned there.
    """

    absent: int
    differing: int
    pinned: int


def count_differences(
    connection: Connection, ids: Sequence[int], other: str
) -> dict[int, DifferenceCounts]:
    """Compare contexts with the same ones of another namespace; those that it lacks are left out.

    Args:
        connection: A transaction.
        ids: The ids of some contexts of one namespace.
        other: The other namespace.
    """
    differs = and_(_theirs.c.scenario.is_not(None), _theirs.c.chosen != _ours.c.chosen)
    query = (
        select(
            contexts.c.id,
            func.sum(case((_theirs.c.scenario.is_(None), 1), else_=0)),
            func.sum(case((differs, 1), else_=0)),
            func.sum(case((and_(differs, _theirs.c.pinned), 1), else_=0)),
        )
        .join(_there, and_(_there.c.namespace == other, _there.c.digest == contexts.c.digest))
        .join(_ours, _ours.c.context_id == contexts.c.id)
        .outerjoin(
            _theirs,
            and_(_theirs.c.context_id == _there.c.id, _theirs.c.scenario == _ours.c.scenario),
        )
        .where(contexts.c.id.in_(ids))
        .group_by(contexts.c.id)
    )
    return {identity: DifferenceCounts(*counts) for identity, *counts in connection.execute(query)}


class ContextRow(NamedTuple):
    """A context with records or misses; times are seconds since 1970.

    Attributes:
        id: The id in the database.
        digest: The digest.
        text: The context as JSON.
        records: The number of its records.
        fetches: Answers with records to machines that had none of them.
        created_at: When it was first heard of.
        used_at: When it was last read or written, to a day.
        changed_at: When its records changed last; None if that was not noted.
        changed_by: Who changed them.
    """

    id: int
    digest: str
    text: str
    records: int
    fetches: int
    created_at: float
    used_at: float
    changed_at: float | None
    changed_by: str | None


class TuningCost(NamedTuple):
    """The seconds that a context's measurements took, and when its records changed last."""

    seconds: float
    changed_at: float


MOST_BYTES = 64 * 2**20
"""Bytes of contexts that are loaded at once; one has about 1000."""
MOST_SCENARIOS = 100_000
"""Scenarios of a context that are loaded at once."""

_CONTEXT = [contexts.c[name] for name in ContextRow._fields]


def load_contexts(
    connection: Connection, namespace: str, kernel: str | None = None, digest: str | None = None
) -> list[ContextRow]:
    """Load contexts of a namespace, all, a kernel's or a single one, ordered by kernel.

    Raises:
        TooLargeError: They have more than `MOST_BYTES`.
    """
    is_missed = select(misses.c.scenario).where(misses.c.context_id == contexts.c.id).exists()
    clauses = [contexts.c.namespace == namespace, or_(contexts.c.records > 0, is_missed)]
    if digest is not None:
        clauses.append(contexts.c.digest == digest)
    if kernel is not None:
        clauses.append(contexts.c.kernel == kernel)
    total = select(func.sum(byte_length(contexts.c.text))).where(*clauses)
    size = int(connection.execute(total).scalar() or 0)
    if size > MOST_BYTES:
        raise TooLargeError(
            f"the contexts of {kernel or 'all kernels'} in {namespace!r} have {size} bytes, and a "
            f"page loads at most {MOST_BYTES}: see by  dejavu-cache quarantine list --writers  who "
            "wrote "
            "so many, and prune those that nobody uses"
        )
    rows = connection.execute(
        select(*_CONTEXT).where(*clauses).order_by(contexts.c.kernel, contexts.c.digest)
    )
    return [ContextRow(*row) for row in rows]


def load_costs(
    connection: Connection, namespace: str, context_id: int | None = None
) -> dict[int, TuningCost]:
    """Load the tuning costs of a namespace's contexts by their id, of all or one."""
    query = (
        select(
            summaries.c.context_id, func.sum(summaries.c.seconds), func.max(summaries.c.changed_at)
        )
        .join(contexts, contexts.c.id == summaries.c.context_id)
        .where(contexts.c.namespace == namespace)
        .group_by(summaries.c.context_id)
    )
    if context_id is not None:
        query = query.where(contexts.c.id == context_id)
    return {identity: TuningCost(*cost) for identity, *cost in connection.execute(query)}


def count_misses(connection: Connection, namespace: str) -> dict[int, int]:
    """Count the scenarios that were missed and have no record, by their context's id."""
    query = (
        select(misses.c.context_id, func.count().label("counted"))
        .join(contexts, contexts.c.id == misses.c.context_id)
        .where(contexts.c.namespace == namespace)
        .group_by(misses.c.context_id)
    )
    return {row.context_id: row.counted for row in connection.execute(query)}


def count_known(connection: Connection, groups: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Count the different scenarios, tuned or missed, of groups of contexts.

    Args:
        connection: A transaction.
        groups: The ids of contexts by the name of their group.
    """
    counts: dict[str, int] = {}
    for name, ids in groups.items():
        known = union(
            *(
                select(table.c.scenario).where(table.c.context_id.in_(chunk))
                for table in (summaries, misses)
                for chunk in chunks(ids)
            )
        ).subquery()
        counts[name] = connection.execute(select(func.count()).select_from(known)).scalar_one()
    return counts


def load_scenarios(connection: Connection, context_id: int) -> dict[str, str]:
    """Load the texts of the scenarios that are tuned in a context, by their digest.

    Raises:
        TooLargeError: There are more than `MOST_SCENARIOS`.
    """
    count = select(contexts.c.records).where(contexts.c.id == context_id)
    tuned = int(connection.execute(count).scalar() or 0)
    if tuned > MOST_SCENARIOS:
        raise TooLargeError(
            f"this context has {tuned} records, and a page loads at most {MOST_SCENARIOS}: see by  "
            "dejavu-cache quarantine list --writers  who wrote so many"
        )
    query = select(records.c.scenario, records.c.scenario_text)
    is_tuned = (records.c.context_id == context_id, records.c.text.is_not(None))
    rows = connection.execute(query.where(*is_tuned))
    return {row.scenario: row.scenario_text for row in rows}


def count_changed(connection: Connection, namespace: str, since: float) -> dict[int, int]:
    """Count the records that changed since a time, in seconds since 1970, by context id."""
    query = (
        select(summaries.c.context_id, func.count().label("counted"))
        .join(contexts, contexts.c.id == summaries.c.context_id)
        .where(contexts.c.namespace == namespace, summaries.c.changed_at >= since)
        .group_by(summaries.c.context_id)
    )
    return {row.context_id: row.counted for row in connection.execute(query)}


def list_namespaces(connection: Connection) -> list[tuple[str, int, int, float | None]]:
    """List all namespaces with the numbers of their contexts and records, and the last change."""
    query = (
        select(
            contexts.c.namespace,
            func.count(),
            func.sum(contexts.c.records),
            func.max(contexts.c.changed_at),
        )
        .group_by(contexts.c.namespace)
        .order_by(contexts.c.namespace)
    )
    return [(name, count, int(total), at) for name, count, total, at in connection.execute(query)]
