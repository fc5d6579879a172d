"""`INSERT … ON CONFLICT`, which SQLite and Postgres both have and SQLAlchemy spells twice."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite

__all__ = ["insert"]


def insert(connection: Connection, table: Table) -> Any:
    """The dialect's insert, which has `on_conflict_do_nothing` and `on_conflict_do_update`."""
    return sqlite.insert(table) if connection.dialect.name == "sqlite" else postgresql.insert(table)
