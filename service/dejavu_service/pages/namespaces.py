"""Namespaces, limited to those that the principal may read."""

from __future__ import annotations

from typing import NamedTuple

from ..services.access import Principal
from ..storage import coverage
from ..storage.database import Database

__all__ = ["NamespaceRow", "list_namespaces"]


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
