"""The schema's version: how the database's schema compares with this code, and its upgrade."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from filelock import FileLock
from psycopg.errors import LockNotAvailable
from sqlalchemy import Connection, text
from sqlalchemy.exc import OperationalError

from ..errors import SchemaError
from .database import Database

_LOCK = 0x64656A617675
"""Key of the advisory lock under which Postgres is upgraded."""
_LOCK_TIMEOUT = "5s"
"""How long a migration may wait for a table: what replicas ask of it waits behind the migration."""


class SchemaState(Enum):
    """How a database's schema compares with the migrations of this code.

    A revision is named by two numbers. A migration that only adds raises the second one: code of
    the versions before it can serve such a schema. Any other one raises the first.
    """

    OUTDATED = "has no tables yet, or those of an older version: run  dejavu-cache db upgrade"
    USABLE = "is up to date"
    NEWER = "was upgraded by a newer version: run  pip install --upgrade dejavu-cache"


def migrations_folder() -> Path:
    """Return the folder of the migrations, in the installed package or at a checkout's root."""
    shipped = Path(__file__).parents[1] / "migrations"
    return shipped if shipped.is_dir() else Path(__file__).parents[3] / "migrations"


def require_current(database: Database) -> None:
    """Upgrade a SQLite file if needed, and refuse a Postgres database that needs an upgrade.

    Raises:
        SchemaError: The schema is newer than this code, or older and not upgraded here.
    """
    with database.read() as connection:
        current = state(connection)
    if current is SchemaState.OUTDATED and not database.is_sqlite:
        raise SchemaError(f"{database.public_url} {current.value} {database.option}")
    if current is not SchemaState.USABLE:
        upgrade(database)


def upgrade(database: Database, revision: str = "head") -> None:
    """Upgrade the schema; any number of processes may do so at once.

    A newer schema that this code can serve is left as it is, so that a version can be rolled back.

    Raises:
        SchemaError: The schema is newer than this code can serve, or a table was in use for long.
    """
    with _exclusive(database) as connection:
        current = state(connection)
        if current is SchemaState.USABLE:
            return
        if current is SchemaState.NEWER:
            raise SchemaError(f"{database.public_url} {current.value}")
        config = Config()
        config.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
        config.attributes["connection"] = connection
        try:
            command.upgrade(config, revision)
        except OperationalError as error:
            if not isinstance(error.orig, LockNotAvailable):
                raise
            raise SchemaError(
                f"a table of {database.public_url} is in use (by a backup?), and nothing was "
                "changed: run  dejavu-cache db upgrade  again"
            ) from None


def state(connection: Connection) -> SchemaState:
    """Compare a database's schema with the migrations."""
    head, older = _revisions()
    revision = MigrationContext.configure(connection).get_current_revision()
    if revision is None or (revision in older and revision != head):
        return SchemaState.OUTDATED
    is_usable = head is not None and revision.partition(".")[0] == head.partition(".")[0]
    return SchemaState.USABLE if is_usable else SchemaState.NEWER


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
        driver: Any = connection.connection.driver_connection
        driver.silence = (math.inf, math.inf)
        connection.execute(text("SET LOCAL lock_timeout = 0"))
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        connection.execute(text(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'"))
        yield connection
