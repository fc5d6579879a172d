"""Who wrote what, and the measurements and winners that are quarantined."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    delete,
    false,
    func,
    or_,
    select,
    union,
    update,
)

from dejavu_cache.model.scenario import canonical_json

from .chunks import chunks
from .sql_functions import contains, ends_with, epoch, measured_by, starts_with
from .tables import contexts, measurements, quarantined, quarantines, records, winner_arrival

__all__ = [
    "Part",
    "PartRange",
    "SentRow",
    "WriterFilter",
    "WriterRow",
    "add",
    "create",
    "delete_measurements",
    "list_contexts",
    "list_parts",
    "list_quarantines",
    "list_scenarios",
    "list_writers",
    "load_measurements",
    "load_parts",
    "load_winner_senders",
    "lock_live",
    "mark_undone",
]


class WriterFilter(NamedTuple):
    """Whose measurements and winners are meant; None stands for any.

    Attributes:
        token: The id of a token, or the name of tokens.
        host: A host, or a user and a host (`ann@h200-1`), as measurements name them.
        since: The earliest time at which they came, in seconds since 1970.
        until: The time before which they came, in seconds since 1970.
        context: The digest of their context.
        scenario: The digest of their scenario.
        config: The digest of their config; a winner goes with the measurement of its config.
    """

    token: str | None = None
    host: str | None = None
    since: float | None = None
    until: float | None = None
    context: str | None = None
    scenario: str | None = None
    config: str | None = None


class WriterRow(NamedTuple):
    """A token and a host, with what came from them; times in seconds since 1970."""

    sender: str
    by: str
    measurements: int
    standing: int
    first: float
    last: float


class SentRow(NamedTuple):
    """A stored measurement."""

    id: int
    scenario: str
    config: str
    digest: str
    text: str
    stands: bool
    sender: str


class Part(NamedTuple):
    """A measurement or a winner in quarantine, as JSON, with its scenario and who sent it."""

    context_id: int
    scenario_text: str
    is_winner: bool
    text: str
    sender: str


class PartRange(NamedTuple):
    """The parts of one scenario in a quarantine: the first and last ids, and how many."""

    first: int
    last: int
    parts: int


def list_writers(connection: Connection, namespace: str, limit: int) -> list[WriterRow]:
    """List tokens and hosts, those with the latest measurement first."""
    by = measured_by(measurements.c.text)
    query = (
        select(
            measurements.c.sender,
            by,
            func.count(),
            func.count().filter(measurements.c.stands),
            func.min(measurements.c.received_at),
            func.max(measurements.c.received_at).label("last"),
        )
        .join(contexts, contexts.c.id == measurements.c.context_id)
        .where(contexts.c.namespace == namespace)
        .group_by(measurements.c.sender, by)
        .order_by(func.max(measurements.c.received_at).desc(), measurements.c.sender)
        .limit(limit)
    )
    rows = map(WriterRow._make, connection.execute(query))
    return [row._replace(by=row.by or "") for row in rows]


def list_contexts(
    connection: Connection, namespace: str, wanted: WriterFilter
) -> list[tuple[int, str]]:
    """List ids and digests of the contexts that have something of a writer."""
    sent = select(measurements.c.context_id).where(_sent_by(wanted))
    won = select(records.c.context_id).where(_won_by(wanted))
    meant = [contexts.c.namespace == namespace]
    if wanted.context is not None:
        meant.append(contexts.c.digest == wanted.context)
    query = (
        select(contexts.c.id, contexts.c.digest)
        .where(*meant)
        .where(or_(contexts.c.id.in_(sent), contexts.c.id.in_(won)))
        .order_by(contexts.c.digest)
    )
    return [(identity, digest) for identity, digest in connection.execute(query)]


def list_scenarios(connection: Connection, context_id: int, wanted: WriterFilter) -> dict[str, int]:
    """List the scenarios of a context that have something of a writer.

    Returns:
        The number of all measurements of each, by the digest of the scenario, sorted by it.
    """
    sent = select(measurements.c.scenario).where(
        measurements.c.context_id == context_id, _sent_by(wanted)
    )
    won = select(records.c.scenario).where(records.c.context_id == context_id, _won_by(wanted))
    sizes = (
        select(measurements.c.scenario, func.count().label("size"))
        .where(measurements.c.context_id == context_id)
        .group_by(measurements.c.scenario)
    )
    counted = {row.scenario: row.size for row in connection.execute(sizes)}
    found = sorted(connection.execute(union(sent, won)).scalars())
    return {scenario: counted.get(scenario, 0) for scenario in found}


def load_measurements(
    connection: Connection, context_id: int, scenarios: Sequence[str], wanted: WriterFilter
) -> dict[str, list[tuple[SentRow, bool]]]:
    """Load all measurements of scenarios, and for each whether a writer sent it.

    Returns:
        The measurements in the order in which they came, by the digest of their scenario.
    """
    columns = [measurements.c[name] for name in SentRow._fields]
    query = (
        select(*columns, _sent_by(wanted))
        .where(measurements.c.context_id == context_id, measurements.c.scenario.in_(scenarios))
        .order_by(measurements.c.id)
    )
    loaded: dict[str, list[tuple[SentRow, bool]]] = {scenario: [] for scenario in scenarios}
    for *values, is_wanted in connection.execute(query):
        row = SentRow._make(values)
        loaded[row.scenario].append((row, bool(is_wanted)))
    return loaded


def load_winner_senders(
    connection: Connection, context_id: int, scenarios: Sequence[str], wanted: WriterFilter
) -> dict[str, str]:
    """Load who sent the winners that are meant, by the digest of their scenario."""
    query = select(records.c.scenario, records.c.winner_sender).where(
        records.c.context_id == context_id,
        records.c.scenario.in_(scenarios),
        _won_by(wanted),
    )
    return {row.scenario: row.winner_sender for row in connection.execute(query)}


def _sent_by(wanted: WriterFilter) -> ColumnElement[bool]:
    clauses: list[ColumnElement[bool]] = []
    if wanted.scenario is not None:
        clauses.append(measurements.c.scenario == wanted.scenario)
    if wanted.config is not None:
        clauses.append(measurements.c.config == wanted.config)
    if wanted.token is not None:
        clauses.append(_token_matches(measurements.c.sender, wanted.token))
    if wanted.host is not None:
        by = measured_by(measurements.c.text)
        clauses.append(or_(by == wanted.host, ends_with(by, f"@{wanted.host}")))
    return and_(*clauses, _came_within(measurements.c.received_at, wanted))


def _won_by(wanted: WriterFilter) -> ColumnElement[bool]:
    # A winner does not say which host it came from: it goes with its measurement.
    if wanted.token is None or wanted.host is not None or wanted.config is not None:
        return false()
    clauses = [
        _token_matches(records.c.winner_sender, wanted.token),
        _came_within(winner_arrival, wanted),
    ]
    if wanted.scenario is not None:
        clauses.append(records.c.scenario == wanted.scenario)
    return and_(*clauses)


def _token_matches(sender: ColumnElement[Any], token: str) -> ColumnElement[bool]:
    """Compare with `name (id)`, or what a promotion by that token writes behind it."""
    identity = f" ({token})"
    return or_(
        starts_with(sender, f"{token} ("),
        ends_with(sender, identity),
        contains(sender, f"{identity} from "),
    )


def _came_within(moment: ColumnElement[Any], wanted: WriterFilter) -> ColumnElement[bool]:
    since = moment >= (wanted.since if wanted.since is not None else 0.0)
    return since if wanted.until is None else and_(since, moment < wanted.until)


def delete_measurements(connection: Connection, rows: Sequence[SentRow]) -> None:
    """Delete stored measurements."""
    for chunk in chunks([row.id for row in rows]):
        connection.execute(delete(measurements).where(measurements.c.id.in_(chunk)))


def create(
    connection: Connection, identity: str, namespace: str, actor: str, wanted: WriterFilter
) -> None:
    """Insert a quarantine without parts."""
    content = {name: value for name, value in wanted._asdict().items() if value is not None}
    connection.execute(
        quarantines.insert().values(
            id=identity,
            namespace=namespace,
            actor=actor,
            wanted=canonical_json(content),
            created_at=epoch(),
        )
    )


def add(connection: Connection, identity: str, parts: Iterable[Part]) -> None:
    """Insert parts of a quarantine."""
    rows = [{"quarantine": identity, **part._asdict()} for part in parts]
    if rows:
        connection.execute(quarantined.insert(), rows)


def list_parts(connection: Connection, identity: str, after: int) -> list[PartRange]:
    """List the parts of a quarantine behind an id, by scenario, in the order of their taking."""
    first = func.min(quarantined.c.id)
    query = (
        select(first, func.max(quarantined.c.id), func.count())
        .where(quarantined.c.quarantine == identity, quarantined.c.id > after)
        .group_by(quarantined.c.context_id, quarantined.c.scenario_text)
        .order_by(first)
    )
    return [PartRange._make(row) for row in connection.execute(query)]


def load_parts(
    connection: Connection, identity: str, first: int, last: int
) -> list[tuple[str, Part]]:
    """Load parts of a quarantine, from the first id to the last, with the text of their context.

    They are sorted by the digest of their context, in which order transactions lock contexts.
    """
    columns = [quarantined.c[name] for name in Part._fields]
    query = (
        select(contexts.c.text, *columns)
        .join(contexts, contexts.c.id == quarantined.c.context_id)
        .where(quarantined.c.quarantine == identity, quarantined.c.id.between(first, last))
        .order_by(contexts.c.digest, quarantined.c.id)
    )
    return [(row[0], Part(*row[1:])) for row in connection.execute(query)]


def list_quarantines(connection: Connection, namespace: str) -> list[Any]:
    """List the quarantines of a namespace with their number of parts, the latest first."""
    parts = (
        select(func.count())
        .select_from(quarantined)
        .where(quarantined.c.quarantine == quarantines.c.id)
        .scalar_subquery()
    )
    query = (
        select(quarantines, parts.label("parts"))
        .where(quarantines.c.namespace == namespace)
        .order_by(quarantines.c.created_at.desc(), quarantines.c.id)
    )
    return list(connection.execute(query))


def lock_live(connection: Connection, namespace: str, identity: str) -> bool:
    """Lock a quarantine that is not undone until the transaction ends; return False if none is."""
    live = and_(
        quarantines.c.id == identity,
        quarantines.c.namespace == namespace,
        quarantines.c.undone_at.is_(None),
    )
    query = select(quarantines.c.id).where(live).with_for_update()
    return connection.execute(query).first() is not None


def mark_undone(connection: Connection, identity: str) -> None:
    """Mark a quarantine, which `lock_live` has locked, as undone."""
    connection.execute(
        update(quarantines).where(quarantines.c.id == identity).values(undone_at=epoch())
    )
