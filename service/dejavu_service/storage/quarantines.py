"""Quarantines: who wrote what, and which parts an act has hidden."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, and_, func, or_, select, update

from .sql import contains, ends_with, epoch, starts_with
from .tables import acts, contexts, parts, writers

__all__ = [
    "HiddenScenario",
    "WriterFilter",
    "WriterRow",
    "find_parts",
    "list_contexts",
    "list_hidden",
    "list_quarantines",
    "list_scenarios",
    "list_writers",
    "load_promotions",
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


class HiddenScenario(NamedTuple):
    """A scenario of which an act has hidden something: its context, and the number of parts."""

    context_id: int
    context: str
    scenario: str
    parts: int


def list_writers(connection: Connection, namespace: str, limit: int) -> list[WriterRow]:
    """List tokens and hosts, those with the latest measurement first."""
    measured = func.sum(writers.c.measurements)
    query = (
        select(
            writers.c.sender,
            writers.c.measured_by,
            measured,
            func.sum(writers.c.standing),
            func.min(writers.c.first),
            func.max(writers.c.last),
        )
        .join(contexts, contexts.c.id == writers.c.context_id)
        .where(contexts.c.namespace == namespace)
        .group_by(writers.c.sender, writers.c.measured_by)
        .having(measured > 0)
        .order_by(func.max(writers.c.last).desc(), writers.c.sender)
        .limit(limit)
    )
    return [
        WriterRow(sender, by, int(measurements), int(standing), first, last)
        for sender, by, measurements, standing, first, last in connection.execute(query)
    ]


def list_contexts(
    connection: Connection, namespace: str, wanted: WriterFilter
) -> list[tuple[int, str]]:
    """List ids and digests of the contexts that may have something of a writer."""
    clauses = [writers.c.context_id == contexts.c.id]
    if wanted.token is not None:
        clauses.append(_token_matches(writers.c.sender, wanted.token))
    if wanted.host is not None:
        clauses.append(_host_matches(writers.c.measured_by, wanted.host))
    query = (
        select(contexts.c.id, contexts.c.digest)
        .where(contexts.c.namespace == namespace, select(writers.c.sender).where(*clauses).exists())
        .order_by(contexts.c.digest)
    )
    if wanted.context is not None:
        query = query.where(contexts.c.digest == wanted.context)
    return [(identity, digest) for identity, digest in connection.execute(query)]


def list_scenarios(connection: Connection, context_id: int, wanted: WriterFilter) -> dict[str, int]:
    """List the scenarios of a context that have something of a writer.

    Returns:
        The number of all parts of each, by the digest of the scenario, sorted by it.
    """
    query = (
        select(parts.c.scenario, func.count().label("size"))
        .where(parts.c.context_id == context_id)
        .group_by(parts.c.scenario)
        .having(func.count().filter(_is_meant(wanted)) > 0)
        .order_by(parts.c.scenario)
    )
    if wanted.scenario is not None:
        query = query.where(parts.c.scenario == wanted.scenario)
    return {row.scenario: row.size for row in connection.execute(query)}


def find_parts(
    connection: Connection, context_id: int, scenarios: Sequence[str], wanted: WriterFilter
) -> set[int]:
    """Return the ids of those parts of scenarios that a writer sent and that are not taken yet."""
    query = select(parts.c.id).where(
        parts.c.context_id == context_id, parts.c.scenario.in_(scenarios), _is_meant(wanted)
    )
    return set(connection.execute(query).scalars())


def _is_meant(wanted: WriterFilter) -> ColumnElement[bool]:
    # What a promotion has replaced would stand again without it, and is taken with the rest.
    is_replaced = parts.c.hidden_by.in_(select(acts.c.id).where(acts.c.kind == "promote"))
    clauses = [
        or_(parts.c.hidden_by.is_(None), is_replaced),
        parts.c.received_at >= (wanted.since if wanted.since is not None else 0.0),
    ]
    if wanted.until is not None:
        clauses.append(parts.c.received_at < wanted.until)
    if wanted.scenario is not None:
        clauses.append(parts.c.scenario == wanted.scenario)
    if wanted.config is not None:
        clauses.append(parts.c.config == wanted.config)
    if wanted.token is not None:
        clauses.append(_token_matches(parts.c.sender, wanted.token))
    if wanted.host is not None:
        clauses.append(_host_matches(parts.c.measured_by, wanted.host))
    # A winner does not say which host it came from: it goes with its measurement.
    kinds = ["measurement", "winner"]
    if wanted.token is None or wanted.host is not None or wanted.config is not None:
        kinds.remove("winner")
    return and_(parts.c.kind.in_(kinds), *clauses)


def _host_matches(measured_by: ColumnElement[Any], host: str) -> ColumnElement[bool]:
    return or_(measured_by == host, ends_with(measured_by, f"@{host}"))


def _token_matches(sender: ColumnElement[Any], token: str) -> ColumnElement[bool]:
    """Compare with `name (id)`, or what a promotion by that token writes behind it."""
    identity = f" ({token})"
    return or_(
        starts_with(sender, f"{token} ("),
        ends_with(sender, identity),
        contains(sender, f"{identity} from "),
    )


def load_promotions(connection: Connection, namespace: str) -> dict[str, float]:
    """Load the times of a namespace's promotions by their id."""
    query = select(acts.c.id, acts.c.at).where(
        acts.c.namespace == namespace, acts.c.kind == "promote"
    )
    return {row.id: row.at for row in connection.execute(query)}


def list_hidden(connection: Connection, act: str) -> list[HiddenScenario]:
    """List what an act has hidden, by context and scenario."""
    query = (
        select(parts.c.context_id, contexts.c.digest, parts.c.scenario, func.count())
        .join(contexts, contexts.c.id == parts.c.context_id)
        .where(parts.c.hidden_by == act)
        .group_by(parts.c.context_id, contexts.c.digest, parts.c.scenario)
        .order_by(contexts.c.digest, parts.c.scenario)
    )
    return [HiddenScenario(*row) for row in connection.execute(query)]


def list_quarantines(connection: Connection, namespace: str) -> list[Any]:
    """List the quarantines of a namespace with the number of parts they hide, the latest first."""
    hidden = (
        select(func.count())
        .select_from(parts)
        .where(parts.c.hidden_by == acts.c.id)
        .scalar_subquery()
    )
    query = (
        select(acts, hidden.label("parts"))
        .where(acts.c.namespace == namespace, acts.c.kind == "quarantine")
        .order_by(acts.c.at.desc(), acts.c.id)
    )
    return list(connection.execute(query))


def lock_live(connection: Connection, namespace: str, act: str) -> bool:
    """Lock a quarantine that is not undone until the transaction ends; return False if none is."""
    query = select(acts.c.id).where(
        acts.c.id == act,
        acts.c.namespace == namespace,
        acts.c.kind == "quarantine",
        acts.c.undone_at.is_(None),
    )
    return connection.execute(query.with_for_update()).first() is not None


def mark_undone(connection: Connection, act: str) -> None:
    """Mark a quarantine, which `lock_live` has locked, as undone."""
    connection.execute(update(acts).where(acts.c.id == act).values(undone_at=epoch()))
