"""The schema's version: where the migrations are, what the database has, and bringing it up to date."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from filelock import FileLock
from sqlalchemy import Connection, text

from dejavu_cache.errors import DejavuError

from .database import Database

__all__ = [
    "SchemaError",
    "State",
    "downgrade",
    "drift",
    "migrations",
    "require",
    "state",
    "upgrade",
]

_LOCK = 0x64656A617675
"""The key of the advisory lock under which Postgres is upgraded."""


class SchemaError(DejavuError):
    """The database's schema is not the one this version works with; the message has the command to run."""


class State(Enum):
    """How a database's schema stands to this code."""

    EMPTY = "empty"
    STALE = "stale"
    CURRENT = "current"
    NEWER = "newer"


def migrations() -> Path:
    """The migrations: inside the package once installed, at the root of a checkout before."""
    shipped = Path(__file__).parents[1] / "migrations"
    return shipped if shipped.is_dir() else Path(__file__).parents[3] / "migrations"


def state(database: Database) -> State:
    """What the database has, without changing it."""
    with database.read() as connection:
        return _state(connection)


def require(database: Database) -> None:
    """Brings a SQLite file up to date, and refuses any other database that is not.

    Raises:
        SchemaError: the schema is stale or newer.
    """
    found = state(database)
    if found is State.CURRENT:
        return
    if found is State.NEWER:
        raise SchemaError(
            f"{database.url} was upgraded by a newer version: run  pip install --upgrade dejavu-cache"
        )
    if not database.is_sqlite:
        raise SchemaError(
            f"{database.url} has {_described(found)}: run  dejavu-cache db upgrade --database {database.url}"
        )
    upgrade(database)


def upgrade(database: Database, revision: str = "head") -> None:
    """Brings the schema up to date; any number of processes may do so at once.

    Raises:
        SchemaError: the database was upgraded by a newer version.
    """
    with _alone(database) as connection:
        if _state(connection) is State.NEWER:
            raise SchemaError(
                f"{database.url} was upgraded by a newer version, and is left as it is"
            )
        command.upgrade(_config(connection), revision)


def downgrade(database: Database, revision: str) -> None:
    """Takes the schema back to a revision; what only the later ones can hold is lost."""
    with _alone(database) as connection:
        command.downgrade(_config(connection), revision)


def drift(database: Database) -> None:
    """Compares the database with the tables of the code.

    Raises:
        alembic.util.CommandError: they differ.
    """
    with database.write() as connection:
        command.check(_config(connection))


def _state(connection: Connection) -> State:
    script = ScriptDirectory(str(migrations()))
    found = MigrationContext.configure(connection).get_current_revision()
    if found is None:
        return State.EMPTY
    if found == script.get_current_head():
        return State.CURRENT
    return (
        State.STALE if found in {each.revision for each in script.walk_revisions()} else State.NEWER
    )


def _described(found: State) -> str:
    return "no tables yet" if found is State.EMPTY else "the tables of an older version"


@contextmanager
def _alone(database: Database) -> Iterator[Connection]:
    if database.file is not None:
        with FileLock(f"{database.file}.upgrade.lock", timeout=120), database.write() as connection:
            yield connection
        return
    with database.write() as connection:
        # Upgrades wait for each other, for as long as the one before takes.
        connection.execute(text("SET LOCAL lock_timeout = 0"))
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        yield connection


def _config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(migrations()).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config
