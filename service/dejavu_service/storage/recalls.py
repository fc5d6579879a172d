"""Recalls: parts of records that were served once, must not come back, and must go from copies."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, bindparam, delete, literal, select

from .chunks import chunks
from .sql_functions import epoch
from .tables import contexts, measurements, recalls, records
from .upserts import insert

__all__ = ["Recall", "add_parts", "add_records", "lift", "load"]

_RECORD = ""
"""Stands for the whole record in the column of parts."""


@dataclass
class Recall:
    """What is recalled of one scenario.

    Attributes:
        deleted_at: When the whole record was deleted, in seconds since 1970; None if it never was.
        parts: Digests of measurements and pins.
    """

    deleted_at: float | None = None
    parts: set[str] = field(default_factory=set)


def add_records(connection: Connection, context_id: int, scenarios: Sequence[str] | None) -> None:
    """Recall whole records with all their measurements, before they are deleted.

    Args:
        connection: A write transaction.
        context_id: The context.
        scenarios: The digests of the scenarios, or None for all of the context.
    """
    for table, part in ((measurements, measurements.c.digest), (records, literal(_RECORD))):
        rows = (
            select(contexts.c.namespace, contexts.c.digest, table.c.scenario, part, epoch())
            .join(table, table.c.context_id == contexts.c.id)
            .where(contexts.c.id == context_id)
        )
        for chunk in [None] if scenarios is None else chunks(scenarios):
            chosen = rows if chunk is None else rows.where(table.c.scenario.in_(chunk))
            statement = insert(connection, recalls).from_select(list(recalls.columns), chosen)
            connection.execute(_or_renew(statement))


def add_parts(
    connection: Connection, namespace: str, context: str, parts: Mapping[str, Iterable[str]]
) -> None:
    """Recall measurements and pins.

    Args:
        connection: A write transaction.
        namespace: The namespace of the records.
        context: The digest of their context.
        parts: The digests of measurements and pins, by the digest of their scenario.
    """
    rows = [
        {"namespace": namespace, "context": context, "scenario": scenario, "part": part}
        for scenario, digests in sorted(parts.items())
        for part in sorted(set(digests))
    ]
    if rows:
        statement = insert(connection, recalls).values(recalled_at=epoch())
        connection.execute(_or_renew(statement), rows)


def _or_renew(statement: Any) -> Any:
    """Complete an insertion: what is recalled already is recalled anew."""
    key = list(recalls.primary_key.columns)
    return statement.on_conflict_do_update(index_elements=key, set_={"recalled_at": epoch()})


def load(
    connection: Connection, namespace: str, context: str, scenarios: Collection[str]
) -> dict[str, Recall]:
    """Load the recalls of scenarios, by their digest; those without any are left out."""
    loaded: dict[str, Recall] = {}
    query = select(recalls.c.scenario, recalls.c.part, recalls.c.recalled_at).where(
        recalls.c.namespace == namespace, recalls.c.context == context
    )
    for chunk in chunks(sorted(scenarios)):
        for scenario, part, at in connection.execute(query.where(recalls.c.scenario.in_(chunk))):
            recall = loaded.setdefault(scenario, Recall())
            if part == _RECORD:
                recall.deleted_at = at
            else:
                recall.parts.add(part)
    return loaded


def lift(
    connection: Connection, namespace: str, context: str, parts: Mapping[str, Iterable[str]]
) -> None:
    """Forget the recalls of parts, given as in `add_parts`, that an admin brings back."""
    statement = delete(recalls).where(
        recalls.c.namespace == namespace,
        recalls.c.context == context,
        recalls.c.scenario == bindparam("lifted_scenario"),
        recalls.c.part == bindparam("lifted_part"),
    )
    rows = [
        {"lifted_scenario": scenario, "lifted_part": part}
        for scenario, digests in sorted(parts.items())
        for part in sorted(digests)
    ]
    if rows:
        connection.execute(statement, rows)
