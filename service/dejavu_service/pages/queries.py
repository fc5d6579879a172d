"""Queries of the pages, limited to the namespaces that the principal may read."""

from __future__ import annotations

from typing import NamedTuple

from dejavu_cache.model.scenario import Context, Scenario

from ..services.access import Principal
from ..storage import coverage, misses
from ..storage.database import Database

__all__ = ["MissView", "NamespaceRow", "list_namespaces", "worklist"]

_MAX_ROWS = 1000


class MissView(NamedTuple):
    """A row of the worklist; times are seconds since 1970."""

    context: Context
    scenario: Scenario
    times: int
    first_seen: float
    last_seen: float


class NamespaceRow(NamedTuple):
    """A namespace with the numbers of its contexts and records, and when they changed last."""

    name: str
    contexts: int
    records: int
    changed_at: float | None


def list_namespaces(
    database: Database, principal: Principal, search: str = ""
) -> list[NamespaceRow]:
    """List the namespaces that the principal may read, by name."""
    with database.read() as connection:
        rows = [NamespaceRow(*row) for row in coverage.list_namespaces(connection)]
    return [
        row
        for row in rows
        if principal.may("read", row.name) and search.lower() in row.name.lower()
    ]


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
