"""Measurements as they arrived, including those that readers do not get."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, select

from .tables import contexts, measurements

__all__ = ["Arrival", "list_arrivals"]


class Arrival(NamedTuple):
    """A measurement as JSON, who sent it when, and whether readers get it."""

    text: str
    stands: bool
    sender: str
    received_at: float


def list_arrivals(
    connection: Connection, namespace: str, context: str, scenario: str, limit: int
) -> list[Arrival]:
    """List the measurements of a scenario, the last to arrive first."""
    columns = (getattr(measurements.c, name) for name in Arrival._fields)
    query = (
        select(*columns)
        .join(contexts, contexts.c.id == measurements.c.context_id)
        .where(
            contexts.c.namespace == namespace,
            contexts.c.digest == context,
            measurements.c.scenario == scenario,
        )
        .order_by(measurements.c.id.desc())
        .limit(limit)
    )
    return [Arrival(*row) for row in connection.execute(query)]
