"""The database's clock, which is one for all replicas, whatever their own ones say."""

from __future__ import annotations

from datetime import datetime, timezone

from sqlalchemy import Connection, select

from .sql_functions import epoch

__all__ = ["database_time"]


def database_time(connection: Connection) -> datetime:
    """Return the present time by the database's clock."""
    seconds = connection.execute(select(epoch())).scalar_one()
    return datetime.fromtimestamp(float(seconds), timezone.utc)
