"""SQLite or Postgres: the engine, and its read and write transactions."""

import os
import shlex
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import Error as PsycopgError
from psycopg import errors as pg
from psycopg.pq import TransactionStatus
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import ArgumentError, OperationalError
from sqlalchemy.pool import ConnectionPoolEntry

from dejavu_cache.errors import SettingsError

from ..errors import SchemaError

_BUSY_SECONDS, _POOL = 10, 8
_FILE_IS_GONE = "the file was moved, replaced or deleted"
"""Message where the path of a SQLite database, or of its WAL, leads to another file."""
_POSTGRES = {
    "client_encoding": "UTF8",  # whatever the database's own is
    "connect_timeout": 3,
    "keepalives_idle": 10,  # so that no firewall forgets an idle connection
}
_ENDED_SESSIONS = {"25006", "25P03", "25P04"}
"""Codes of Postgres for errors that are the session's and not the statement's: it may only read, or
was ended since its transaction took too long."""
IS_DAMAGED = "the database is damaged: stop the server, restore the backup, and start it again"
"""Said of a database whose data cannot be read back, which no retry mends."""
_IS_UNPREPARED = (
    "the database lacks tables that this version needs, or rights of the server's role to them"
)
_REASONS: dict[str, tuple[tuple[str, ...], tuple[type[PsycopgError], ...]]] = {
    IS_DAMAGED: (("malformed", "not a database"), (pg.DataCorrupted, pg.IndexCorrupted)),
    "the database is busy with others who write": (
        ("is locked",),
        (pg.DeadlockDetected, pg.LockNotAvailable, pg.SerializationFailure),
    ),
    "the database may only be read now": (("readonly",), (pg.ReadOnlySqlTransaction,)),
    "the database has no room left on its disk": (("is full",), (pg.DiskFull,)),
    _IS_UNPREPARED: (
        ("no such table",),
        (pg.InsufficientPrivilege, pg.InvalidSchemaName, pg.UndefinedColumn, pg.UndefinedTable),
    ),
    "the database was moved, replaced or deleted while the server ran, which must be restarted": (
        (_FILE_IS_GONE,),
        (),
    ),
}
"""Reasons for which a database refuses, with parts of SQLite's messages and Postgres' errors."""
# A pooler such as PgBouncer gives every transaction another session: prepared statements are not
# there, and settings are somebody else's. The isolation, too, may be another one by default.
_BEGIN_POSTGRES = (
    "BEGIN ISOLATION LEVEL {}; SET LOCAL statement_timeout = 40000; "
    "SET LOCAL lock_timeout = 10000; SET LOCAL idle_in_transaction_session_timeout = 60000"
)


def parse_url(text: str) -> URL:
    """Parse the URL of a database and set the driver that the server uses.

    Raises:
        SettingsError: The URL is neither a SQLite file's nor a Postgres database's.
    """
    try:
        url = make_url(text)
    except ArgumentError:
        raise SettingsError(
            "this is no database URL: use sqlite:///FILE or postgresql://HOST/NAME"
        ) from None
    if url.get_backend_name() in ("postgresql", "postgres"):
        return url.set(drivername="postgresql+psycopg")
    is_file = url.database and url.database != ":memory:" and url.host is None
    if url.get_backend_name() == "sqlite" and is_file and url.username is None:
        return url.set(drivername="sqlite+pysqlite")
    raise SettingsError(f"{url!r} is not supported: use sqlite:///FILE or postgresql://HOST/NAME")


def reason(error: BaseException | None) -> str:
    """Return a sentence that says why the database refuses, by its driver's error."""
    for said, (messages, errors) in _REASONS.items():
        is_said = any(message in str(error) for message in messages)
        if isinstance(error, errors) or (isinstance(error, sqlite3.DatabaseError) and is_said):
            return said
    return "the database does not answer"


class Database:
    """The database connections of one process, opened on first use.

    Attributes:
        url: The database's URL with its driver; `str` masks its password.
        is_sqlite: Whether the database is SQLite; Postgres otherwise.
        engine: The SQLAlchemy engine with its connection pool.
        is_damaged: Whether a statement met damaged data. It stays so until the server is started
            again, as it must be after the backup was restored.
    """

    def __init__(self, url: str, *, create: bool = True) -> None:
        """Prepare an engine that keeps 8 connections and opens as many again under load.

        Raises:
            SchemaError: The SQLite file does not exist, and the database shall not be created.
            SettingsError: As in `parse_url`.
        """
        self.url = parse_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        if self.file is not None and not create and not self.file.is_file():
            named = "name it by --database or DEJAVU_SERVER_DATABASE"
            raise SchemaError(f"there is no database {self.file}: {named}")
        self.engine = _sqlite(self.url) if self.is_sqlite else _postgres(self.url)
        self.is_damaged = False
        event.listen(self.engine, "handle_error", self._translate, retval=True)
        self._writing = self.engine.execution_options(dejavu_write=True)
        self._writers, self._line = deque[object](), threading.Condition()

    @property
    def psycopg_arguments(self) -> dict[str, Any]:
        """Arguments for a connection that psycopg opens beside the pool."""
        _, arguments = self.engine.dialect.create_connect_args(self.url)
        return {**arguments, **_POSTGRES}

    @property
    def public_url(self) -> str:
        """The URL as users write it, without its password."""
        url = self.url.set(drivername="sqlite" if self.is_sqlite else "postgresql")
        if self.file is not None:
            url = url.set(database=str(self.file.absolute()))
        return url.render_as_string(hide_password=True)

    @property
    def option(self) -> str:
        """The option that names the database in a command, without its password."""
        hint = "  (with the password instead of ***)" if self.url.password else ""
        return f"--database {shlex.quote(self.public_url)}{hint}"

    @property
    def file(self) -> Path | None:
        """Path of a SQLite database; None for Postgres."""
        return Path(self.url.database) if self.is_sqlite and self.url.database else None

    def read(self) -> AbstractContextManager[Connection]:
        """Open a read transaction, which sees one moment."""
        return self.engine.connect()

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Open a write transaction, committed durably at the end or rolled back on an error.

        Writers of SQLite come one after the other: it lets each try again and again, so that some
        would never come in between others.
        """
        mine = object()
        with self._line:
            self._writers.append(mine)
            while self.is_sqlite and self._writers[0] is not mine:
                if not self._line.wait(_BUSY_SECONDS):
                    break  # SQLite says why
        try:
            with self._writing.begin() as connection:
                yield connection
        finally:
            with self._line:
                self._writers.remove(mine)
                self._line.notify_all()

    def note_damage(self, error: BaseException | None) -> bool:
        """Remember it if a driver's error says that the data is damaged; return whether it does."""
        damage = reason(error) == IS_DAMAGED
        self.is_damaged |= damage
        return damage

    def _translate(self, context: ExceptionContext) -> BaseException | None:
        """Tell errors that are the database's from those of the statement.

        A session that cannot be used any more counts as a connection that was lost: after a
        failover, the connections that are left lead to a server that may only be read, and new ones
        find the server that may be written, where the URL or a proxy names it.
        """
        cause = context.original_exception
        if self.note_damage(cause) or reason(cause) == _IS_UNPREPARED:
            return OperationalError(None, None, cause)
        if getattr(cause, "sqlstate", None) not in _ENDED_SESSIONS:
            return None
        context.is_disconnect = True
        return OperationalError(None, None, cause, connection_invalidated=True)

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()


def _postgres(url: URL) -> Engine:
    engine = create_engine(
        url,
        pool_size=_POOL,
        max_overflow=_POOL,
        pool_timeout=5,
        pool_pre_ping=True,
        pool_use_lifo=True,
        hide_parameters=True,
        # `_begin_postgres` begins transactions, not the driver.
        connect_args={**_POSTGRES, "autocommit": True, "prepare_threshold": None},
    )
    event.listen(engine, "begin", _begin_postgres)
    event.listen(engine, "do_connect", lambda _, __, args, named: _Bounded.connect(*args, **named))
    return engine


class _Bounded(psycopg.Connection[Any]):
    """A connection that ends where Postgres is silent for longer than it needs for anything.

    Postgres keeps a statement's timeout, and the kernel a socket's: neither notices a Postgres that
    hangs on a machine that answers.

    Attributes:
        silence: Seconds for a statement, and for one that begins a transaction or asks for a sign
            of life.
    """

    silence = (45.0, 10.0)

    def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
        """Wait for what a generator of psycopg does, which hears of nothing ten times a second."""
        is_outside = self.pgconn.transaction_status == TransactionStatus.IDLE
        return super().wait(self._bound_wait(gen, self.silence[is_outside]), *args, **options)

    def _bound_wait(self, gen: Any, seconds: float) -> Generator[Any, Any, Any]:
        end, ready = time.monotonic() + seconds, None
        try:
            while True:
                ready = yield gen.send(ready)
                if not ready and time.monotonic() > end:
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"Postgres was silent for {seconds:g} s")
        except StopIteration as done:
            return done.value


def _begin_postgres(connection: Connection) -> None:
    driver: Any = connection.connection.driver_connection
    # Who reads sees one moment, as in SQLite; who writes goes on after it has waited for a lock.
    writes = connection.get_execution_options().get("dejavu_write")
    driver.execute(_BEGIN_POSTGRES.format("READ COMMITTED" if writes else "REPEATABLE READ"))


def _sqlite(url: URL) -> Engine:
    path = Path(str(url.database)).absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_file() and 0 < path.stat().st_size < 512:  # to open it here would drop its locks
        raise SchemaError(f"{path} is no database: name another, or restore its backup")
    engine = create_engine(
        url.set(database=str(path)),
        pool_size=_POOL,
        max_overflow=_POOL,
        pool_timeout=_BUSY_SECONDS,
        hide_parameters=True,  # a log is read by more people than the records are
        # `_begin_sqlite` begins transactions, not the driver.
        connect_args={"timeout": _BUSY_SECONDS, "isolation_level": None},
    )
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, record: ConnectionPoolEntry) -> None:
    # The last one reads from the file, which makes the WAL of one that had none.
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "schema_version"):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    ((_, _, path),) = connection.execute("PRAGMA database_list").fetchall()
    wal = f"{path}-wal"  # beside the file itself, where the URL names a link
    record.info["files"] = [_identify_file(path), _identify_file(wal)]
    record.info["wal"] = wal


def _identify_file(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:  # it is gone, or its folder may not be entered any more
        return None
    return status.st_dev, status.st_ino


def require_file(url: URL, info: Mapping[str, Any]) -> None:
    """Check that a connection to SQLite leads to the file that its URL names.

    What is written to a file that nobody can find again would be confirmed, and be lost.

    Raises:
        OperationalError: It leads to another one.
    """
    if [*map(_identify_file, (str(url.database), info["wal"]))] != info["files"]:
        raise OperationalError("BEGIN", None, sqlite3.OperationalError(_FILE_IS_GONE))


def _begin_sqlite(connection: Connection) -> None:
    require_file(connection.engine.url, connection.info)
    # A writer takes the lock at the start: SQLite fails a transaction that began by reading and
    # then has to wait for another writer.
    writes = connection.get_execution_options().get("dejavu_write")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
