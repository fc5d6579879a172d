"""The database's clock, which is one for all replicas, whatever their own ones say."""

from __future__ import annotations

from datetime import datetime, timezone

from sqlalchemy import Connection, select

from .sql_functions import epoch

__all__ = ["database_time", "to_datetime"]


def database_time(connection: Connection) -> datetime:
    """Return the present time by the database's clock."""
    return to_datetime(float(connection.execute(select(epoch())).scalar_one()))


def to_datetime(seconds: float) -> datetime:
    """Return a time that is stored in the database."""
    return datetime.fromtimestamp(seconds, timezone.utc)
