"""Queries of the pages, limited to the namespaces that the principal may read."""

from __future__ import annotations

from typing import NamedTuple

from dejavu_cache.model.record import Record
from dejavu_cache.model.scenario import Context, Scenario

from ..services.access import Principal
from ..storage import contexts, misses, records
from ..storage.database import Database
from .views import ContextCell, KernelMatrix, ScenarioRow, kernel_matrix, scenario_row

__all__ = ["ContextPageView", "MissView", "kernel", "list_namespaces", "overview", "worklist"]

_MAX_ROWS = 1000


class ContextPageView(NamedTuple):
    """A context, the number of its records, and the rows of one page of them."""

    context: Context
    total: int
    rows: list[ScenarioRow]


class MissView(NamedTuple):
    """A row of the worklist; times are seconds since 1970."""

    context: Context
    scenario: Scenario
    times: int
    first_seen: float
    last_seen: float


def list_namespaces(database: Database, principal: Principal) -> list[str]:
    """List the namespaces with records, those with the most records first."""
    counts: dict[str, int] = {}
    with database.read() as connection:
        for namespace, _, _, count in contexts.count_records_per_device(connection):
            counts[namespace] = counts.get(namespace, 0) + count
    readable = [namespace for namespace in counts if principal.may("read", namespace)]
    return sorted(readable, key=lambda namespace: (-counts[namespace], namespace))


def overview(database: Database, principal: Principal, namespace: str) -> KernelMatrix:
    """Count the records of a namespace by kernel and device."""
    principal.require("read", namespace)
    with database.read() as connection:
        rows = contexts.count_records(connection, namespace, _MAX_ROWS)
    return kernel_matrix(
        ContextCell(digest, Context.model_validate_json(text), count)
        for digest, text, count in rows
    )


def worklist(database: Database, principal: Principal, namespace: str) -> list[MissView]:
    """List the misses, the most frequent first."""
    principal.require("read", namespace)
    with database.read() as connection:
        rows = misses.list_misses(connection, namespace, None, _MAX_ROWS)
    return [
        MissView(
            Context.model_validate_json(row.context),
            Scenario.model_validate_json(row.scenario),
            row.times,
            row.first_seen,
            row.last_seen,
        )
        for row in rows
    ]


def kernel(
    database: Database, principal: Principal, namespace: str, digest: str, start: int, limit: int
) -> ContextPageView | None:
    """Load a context and up to `limit` of its records from position `start` on.

    Returns:
        None if the context has no records.
    """
    principal.require("read", namespace)
    with database.read() as connection:
        stored = records.load_record_set(connection, namespace, digest)
    if stored is None:
        return None
    page = stored.records[start : start + limit]
    return ContextPageView(
        context=Context.model_validate_json(stored.context),
        total=len(stored.records),
        rows=[scenario_row(Record.model_validate_json(text)) for text in page],
    )
