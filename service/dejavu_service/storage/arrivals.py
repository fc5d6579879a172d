"""Measurements as they arrived, including those that readers do not get."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sqlalchemy import Connection, select

from .tables import contexts, measurements

__all__ = ["Arrival", "iter_until", "list_arrivals"]

_PAGE = 500


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


def iter_until(connection: Connection, context_id: int, moment: float) -> Iterator[tuple[str, str]]:
    """Iterate over the measurements that arrived until a time, in seconds since 1970.

    Yields:
        Pairs of the scenario's digest and the measurement as JSON, a page of which is in memory.
    """
    query = select(measurements.c.scenario, measurements.c.text).where(
        measurements.c.context_id == context_id, measurements.c.received_at <= moment
    )
    rows = connection.execute(query, execution_options={"yield_per": _PAGE})
    yield from ((scenario, text) for scenario, text in rows)
