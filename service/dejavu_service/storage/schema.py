"""The schema's version: how the database's schema compares with this code, and its upgrade."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from filelock import FileLock
from sqlalchemy import Connection, text

from ..errors import SchemaError
from .database import Database

__all__ = [
    "SchemaState",
    "check_drift",
    "downgrade",
    "migrations_folder",
    "require_current",
    "state",
    "upgrade",
]

_LOCK = 0x64656A617675
"""Key of the advisory lock under which Postgres is upgraded."""


class SchemaState(Enum):
    """How a database's schema compares with the migrations of this code."""

    EMPTY = "empty"
    STALE = "stale"
    CURRENT = "current"
    NEWER = "newer"


def migrations_folder() -> Path:
    """Return the folder of the migrations, in the installed package or at a checkout's root."""
    shipped = Path(__file__).parents[1] / "migrations"
    return shipped if shipped.is_dir() else Path(__file__).parents[3] / "migrations"


def state(database: Database) -> SchemaState:
    """Compare a database's schema with the migrations."""
    with database.read() as connection:
        return _state(connection)


def require_current(database: Database) -> None:
    """Upgrade a SQLite file if needed, and refuse a Postgres database that needs an upgrade.

    Raises:
        SchemaError: The schema is newer than this code, or older and not upgraded here.
    """
    current = state(database)
    if current is SchemaState.CURRENT:
        return
    if current is SchemaState.NEWER:
        raise SchemaError(
            f"{database.url} was upgraded by a newer version: "
            "run  pip install --upgrade dejavu-cache"
        )
    if not database.is_sqlite:
        tables = (
            "no tables yet" if current is SchemaState.EMPTY else "the tables of an older version"
        )
        raise SchemaError(
            f"{database.url} has {tables}: run  dejavu-cache db upgrade --database {database.url}"
        )
    upgrade(database)


def upgrade(database: Database, revision: str = "head") -> None:
    """Upgrade the schema; any number of processes may do so at once.

    Raises:
        SchemaError: The database was upgraded by a newer version.
    """
    with _exclusive(database) as connection:
        if _state(connection) is SchemaState.NEWER:
            raise SchemaError(
                f"{database.url} was upgraded by a newer version, and is left as it is"
            )
        command.upgrade(_config(connection), revision)


def downgrade(database: Database, revision: str) -> None:
    """Downgrade the schema to a revision; data that only later revisions can hold is lost."""
    with _exclusive(database) as connection:
        command.downgrade(_config(connection), revision)


def check_drift(database: Database) -> None:
    """Compare the database's schema with the tables in `tables`.

    Raises:
        alembic.util.CommandError: They differ.
    """
    with database.write() as connection:
        command.check(_config(connection))


def _state(connection: Connection) -> SchemaState:
    head, older = _revisions()
    revision = MigrationContext.configure(connection).get_current_revision()
    if revision is None:
        return SchemaState.EMPTY
    if revision == head:
        return SchemaState.CURRENT
    return SchemaState.STALE if revision in older else SchemaState.NEWER


@cache
def _revisions() -> tuple[str | None, frozenset[str]]:
    """Return the newest revision of the migrations, and all of them; loading them takes long."""
    scripts = ScriptDirectory(str(migrations_folder()))
    older = frozenset(script.revision for script in scripts.walk_revisions())
    return scripts.get_current_head(), older


@contextmanager
def _exclusive(database: Database) -> Iterator[Connection]:
    if database.file is not None:
        with FileLock(f"{database.file}.upgrade.lock", timeout=120), database.write() as connection:
            yield connection
        return
    with database.write() as connection:
        # Concurrent upgrades wait for each other, however long each takes.
        connection.execute(text("SET LOCAL lock_timeout = 0"))
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        yield connection


def _config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config
