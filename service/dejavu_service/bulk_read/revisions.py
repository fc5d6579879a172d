"""The current revisions of contexts: what every read asks first, so without a thread and without an ORM."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import psycopg
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from ..storage.contexts import Key, Revision
from ..storage.database import Database

__all__ = ["GroupedRevisions", "Revisions", "SqliteRevisions", "open_revisions"]

_COLUMNS = "namespace, digest, id, revision, records"
_ONE = f"SELECT {_COLUMNS} FROM contexts WHERE namespace = ? AND digest = ?"
_NAME = b"dejavu_revisions"
_SOME = f"""
    SELECT {_COLUMNS} FROM contexts JOIN unnest($1::text[], $2::text[]) AS wanted (n, d)
    ON namespace = wanted.n AND digest = wanted.d
""".encode()
_MOST = 200
"""Keys in one question."""
_PATIENCE = 5.0
"""Seconds for an answer."""


class Revisions(Protocol):
    """Where the revisions come from."""

    async def get(self, key: Key) -> Revision | None:
        """The revision of a context as it is now, or None if the context is not known.

        Raises:
            SQLAlchemyError, sqlite3.Error: SQLite does not answer.
            psycopg.Error: Postgres does not answer.
        """

    async def close(self) -> None:
        """Lets go of the connection."""


def open_revisions(database: Database) -> Revisions:
    """The revisions of a database."""
    return SqliteRevisions(database) if database.is_sqlite else GroupedRevisions(database)


class SqliteRevisions:
    """Asks SQLite on the spot: it takes some microseconds, and in WAL mode readers wait for nobody."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: Any = None

    async def get(self, key: Key) -> Revision | None:
        """One indexed look-up."""
        if self._connection is None:
            self._connection = self._database.engine.raw_connection()
        row = self._connection.driver_connection.execute(_ONE, key).fetchone()
        return None if row is None else Revision(*row[2:])

    async def close(self) -> None:
        """Gives the connection back to the pool."""
        if self._connection is not None:
            self._connection.close()


class GroupedRevisions:
    """Asks Postgres for several at once: who comes while it is answering shares the next question.

    Every answer was read after it was asked for, so it is never older than the request, however many replicas
    write. Under load one round trip serves all the requests that wait, over one connection.
    """

    def __init__(self, database: Database) -> None:
        self._arguments = database.arguments
        self._line: _Line | None = None
        self._waiting: dict[Key, list[asyncio.Future[Revision | None]]] = {}
        self._asking: asyncio.Task[None] | None = None

    async def get(self, key: Key) -> Revision | None:
        """The answer to the next question."""
        future: asyncio.Future[Revision | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append(future)
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        return await future

    async def _ask(self) -> None:
        while self._waiting:
            # Who has just been answered goes on first, and who has come meanwhile joins: fewer, larger questions.
            await asyncio.sleep(0)
            asked = {key: self._waiting.pop(key) for key in list(self._waiting)[:_MOST]}
            found: dict[Key, Revision] = {}
            failed: Exception | None = None
            try:
                found = await self._fetch(list(asked))
            except Exception as error:
                failed = error
                await self._hang_up()
            for key, futures in asked.items():
                for future in futures:
                    if future.done():  # its request was given up
                        continue
                    if failed is None:
                        future.set_result(found.get(key))
                    else:
                        future.set_exception(failed)

    async def _fetch(self, keys: list[Key]) -> dict[Key, Revision]:
        if self._line is not None:
            try:
                return await self._line.ask(keys)
            except _UnansweredError:
                raise
            except psycopg.OperationalError:
                # The connection died since it was last used; the database may be there all the same.
                await self._hang_up()
        self._line = await _Line.dial(self._arguments)
        return await self._line.ask(keys)

    async def _hang_up(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            await line.hang_up()

    async def close(self) -> None:
        """Hangs up."""
        if self._asking is not None:
            self._asking.cancel()
        await self._hang_up()


class _UnansweredError(psycopg.OperationalError):
    """The database took too long."""


class _Line:
    """A connection that answers one question at a time, prepared once and sent by libpq.

    A cursor of psycopg takes five times the processor time for the same, which on a busy server is most of a check.
    """

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection
        self._pg = connection.pgconn
        self._socket = self._pg.socket
        self._loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[list[PGresult]] = self._loop.create_future()
        self._answer.cancel()  # nothing is asked yet
        self._came: list[PGresult] = []
        self._loop.add_reader(self._socket, self._read)

    @classmethod
    async def dial(cls, arguments: dict[str, Any]) -> _Line:
        """A line that is ready for questions.

        Raises:
            psycopg.Error: Postgres is not there, or not as it should be.
        """
        line = cls(await psycopg.AsyncConnection.connect(**arguments, autocommit=True))
        try:
            await line._sent(lambda: line._pg.send_prepare(_NAME, _SOME))
        except BaseException:
            await line.hang_up()
            raise
        return line

    async def ask(self, keys: list[Key]) -> dict[Key, Revision]:
        """The revisions of those contexts that are known.

        Raises:
            psycopg.Error: the connection is of no more use.
        """
        wanted = [_array(namespace for namespace, _ in keys), _array(digest for _, digest in keys)]
        result = await self._sent(lambda: self._pg.send_query_prepared(_NAME, wanted))
        found = {}
        for row in range(result.ntuples):
            # In text: none of the columns can be NULL.
            fields = [(result.get_value(row, column) or b"").decode() for column in range(5)]
            found[fields[0], fields[1]] = Revision(int(fields[2]), fields[3], int(fields[4]))
        return found

    async def _sent(self, send: Callable[[], None]) -> PGresult:
        send()
        self._answer, self._came = self._loop.create_future(), []
        self._flush()
        late = self._loop.call_later(_PATIENCE, self._fail, _UnansweredError("no answer in time"))
        try:
            result = (await self._answer)[-1]
        finally:
            late.cancel()
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
                    if not self._answer.done():
                        self._answer.set_result(self._came)
                    break
                self._came.append(result)
        except psycopg.Error as error:
            self._loop.remove_reader(self._socket)  # it would be called for ever
            self._fail(error)

    def _fail(self, error: psycopg.Error) -> None:
        if not self._answer.done():
            self._answer.set_exception(error)

    async def hang_up(self) -> None:
        """Closes the connection."""
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        await self._connection.close()


def _array(texts: Iterable[str]) -> bytes:
    """An array of texts as Postgres reads it."""
    quoted = ('"' + each.replace("\\", r"\\").replace('"', r"\"") + '"' for each in texts)
    return f"{{{','.join(quoted)}}}".encode()
