"""Look-ups of contexts' current revisions, in the event loop and without an ORM."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import psycopg
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from ..storage.contexts import ContextKey, Revision
from ..storage.database import Database

__all__ = ["GroupedRevisions", "Revisions", "SqliteRevisions", "open_revisions"]

_COLUMNS = "namespace, digest, id, revision, records"
_SQLITE_QUERY = f"SELECT {_COLUMNS} FROM contexts WHERE namespace = ? AND digest = ?"
_POSTGRES_QUERY = f"""
    SELECT {_COLUMNS} FROM contexts JOIN unnest($1::text[], $2::text[]) AS wanted (n, d)
    ON namespace = wanted.n AND digest = wanted.d
""".encode()
_BATCH = 200
"""The largest number of contexts in one query."""
_TIMEOUT = 5.0
"""Seconds that Postgres has to answer a query."""


class Revisions(Protocol):
    """Look-ups of current revisions in a database."""

    async def get(self, key: ContextKey) -> Revision | None:
        """Look up the current revision of a context; None if the context does not exist.

        Raises:
            SQLAlchemyError, sqlite3.Error: SQLite does not answer.
            psycopg.Error: Postgres does not answer.
        """

    async def close(self) -> None:
        """Close the connection."""


def open_revisions(database: Database) -> Revisions:
    """Return the look-ups for a kind of database; connections are opened on first use."""
    return SqliteRevisions(database) if database.is_sqlite else GroupedRevisions(database)


class SqliteRevisions:
    """Look-ups in SQLite, made in the event loop.

    A look-up takes some microseconds, less than handing it to a thread would, and in WAL mode a
    reader never waits for a writer.
    """

    def __init__(self, database: Database) -> None:
        """Use a connection of the database's pool."""
        self._database = database
        self._connection: Any = None

    async def get(self, key: ContextKey) -> Revision | None:
        """Look up the current revision by the index of namespace and digest."""
        if self._connection is None:
            self._connection = self._database.engine.raw_connection()
        row = self._connection.driver_connection.execute(_SQLITE_QUERY, key).fetchone()
        return None if row is None else Revision(*row[2:])

    async def close(self) -> None:
        """Return the connection to the pool."""
        if self._connection is not None:
            self._connection.close()


class GroupedRevisions:
    """Look-ups in Postgres, batched: requests that arrive during a query share the next one.

    A look-up is always part of a query sent after it was requested, so its result is never older
    than the request, however many replicas write. Under load one round trip over one connection
    serves all requests that wait.
    """

    def __init__(self, database: Database) -> None:
        """Use a connection of its own beside the database's pool."""
        self._arguments = database.psycopg_arguments
        self._connection: _QueryConnection | None = None
        self._waiting: dict[ContextKey, list[asyncio.Future[Revision | None]]] = {}
        self._querying: asyncio.Task[None] | None = None

    async def get(self, key: ContextKey) -> Revision | None:
        """Look up the current revision as part of the next query."""
        future: asyncio.Future[Revision | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append(future)
        if self._querying is None or self._querying.done():
            self._querying = asyncio.create_task(self._query_waiting())
        return await future

    async def _query_waiting(self) -> None:
        while self._waiting:
            # Let the requests answered by the last query run first: those that ask again at once
            # join the next query, which makes queries fewer and larger.
            await asyncio.sleep(0)
            batch = {key: self._waiting.pop(key) for key in list(self._waiting)[:_BATCH]}
            revisions: dict[ContextKey, Revision] = {}
            failure: Exception | None = None
            try:
                revisions = await self._query(list(batch))
            except Exception as error:
                failure = error
                await self._disconnect()
            for key, futures in batch.items():
                for future in futures:
                    if future.done():  # its request was cancelled
                        continue
                    if failure is None:
                        future.set_result(revisions.get(key))
                    else:
                        future.set_exception(failure)

    async def _query(self, keys: list[ContextKey]) -> dict[ContextKey, Revision]:
        if self._connection is not None:
            try:
                return await self._connection.query(keys)
            except _QueryTimeoutError:
                raise
            except psycopg.OperationalError:
                # The connection may have died since its last use while the database is well.
                await self._disconnect()
        self._connection = await _QueryConnection.connect(self._arguments)
        return await self._connection.query(keys)

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def close(self) -> None:
        """Cancel the query in progress and close the connection."""
        if self._querying is not None:
            self._querying.cancel()
        await self._disconnect()


class _QueryTimeoutError(psycopg.OperationalError):
    """Postgres did not answer in time."""


class _QueryConnection:
    """A connection for one statement, sent by libpq, one query at a time.

    A psycopg cursor takes five times the processor time for the same query, which on a busy server
    is most of the time of a revalidation. The statement is not prepared: that takes as long, and a
    pooler may send each query over another session.
    """

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Take over a connection and watch its socket in the running event loop."""
        self._connection = connection
        self._pg = connection.pgconn
        self._socket = self._pg.socket
        self._loop = asyncio.get_running_loop()
        self._finished: asyncio.Future[list[PGresult]] = self._loop.create_future()
        self._finished.cancel()  # no query is in progress
        self._results: list[PGresult] = []
        self._loop.add_reader(self._socket, self._read)

    @classmethod
    async def connect(cls, arguments: dict[str, Any]) -> _QueryConnection:
        """Connect to Postgres.

        Raises:
            psycopg.Error: Postgres does not answer.
        """
        return cls(await psycopg.AsyncConnection.connect(**arguments, autocommit=True))

    async def query(self, keys: list[ContextKey]) -> dict[ContextKey, Revision]:
        """Look up the revisions of those contexts that exist.

        Raises:
            psycopg.Error: The connection cannot be used any more.
        """
        arrays = [
            _text_array(namespace for namespace, _ in keys),
            _text_array(digest for _, digest in keys),
        ]
        result = await self._execute(lambda: self._pg.send_query_params(_POSTGRES_QUERY, arrays))
        revisions = {}
        for row in range(result.ntuples):
            # Values in libpq's text format; all columns are NOT NULL.
            fields = [(result.get_value(row, column) or b"").decode() for column in range(5)]
            revisions[fields[0], fields[1]] = Revision(int(fields[2]), fields[3], int(fields[4]))
        return revisions

    async def _execute(self, send: Callable[[], None]) -> PGresult:
        send()
        self._finished, self._results = self._loop.create_future(), []
        self._flush()
        timer = self._loop.call_later(_TIMEOUT, self._fail, _QueryTimeoutError("no answer in time"))
        try:
            result = (await self._finished)[-1]
        finally:
            timer.cancel()
        if result.status not in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
            raise psycopg.OperationalError(result.error_message.decode(errors="replace"))
        return result

    def _flush(self) -> None:
        if self._pg.flush():
            self._loop.add_writer(self._socket, self._flush)
        else:
            self._loop.remove_writer(self._socket)

    def _read(self) -> None:
        try:
            self._pg.consume_input()
            while not self._pg.is_busy():
                result = self._pg.get_result()
                if result is None:
                    if not self._finished.done():
                        self._finished.set_result(self._results)
                    break
                self._results.append(result)
        except psycopg.Error as error:
            # A broken socket stays readable: the event loop would call this method without end.
            self._loop.remove_reader(self._socket)
            self._fail(error)

    def _fail(self, error: psycopg.Error) -> None:
        if not self._finished.done():
            self._finished.set_exception(error)

    async def close(self) -> None:
        """Stop watching the socket and close the connection."""
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        await self._connection.close()


def _text_array(texts: Iterable[str]) -> bytes:
    """Render a Postgres array literal of texts."""
    quoted = ('"' + text.replace("\\", r"\\").replace('"', r"\"") + '"' for text in texts)
    return f"{{{','.join(quoted)}}}".encode()
