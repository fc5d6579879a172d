"""`INSERT … ON CONFLICT` for SQLite and Postgres, which SQLAlchemy defines in each dialect."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite

__all__ = ["insert"]


def insert(connection: Connection, table: Table) -> Any:
    """Return the dialect's insert with `on_conflict_do_nothing` and `on_conflict_do_update`."""
    return sqlite.insert(table) if connection.dialect.name == "sqlite" else postgresql.insert(table)
