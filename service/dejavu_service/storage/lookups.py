"""Look-ups that requests share: of anything, and of revisions, for which every read asks."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

import anyio
import psycopg

from .contexts import ContextKey, Revision
from .database import Database, require_file

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

_SQLITE = """
    SELECT id, revision, records FROM contexts WHERE namespace = ? AND digest = ?
"""
_POSTGRES = """
    SELECT namespace, digest, id, revision, records FROM contexts
    WHERE (namespace, digest) IN ({})
"""

_LONGEST_QUERY = 5.0
"""Seconds that Postgres has to answer: the table may be locked, or the machine may hang."""


class SingleFlight(Generic[_Key, _Value]):
    """Tasks in progress on an event loop, by key; callers with the same key share one task."""

    def __init__(self) -> None:
        """Start with no tasks."""
        self._tasks: dict[_Key, asyncio.Task[_Value]] = {}

    async def get(self, key: _Key, work: Callable[[], Coroutine[Any, Any, _Value]]) -> _Value:
        """Wait for the task in progress for a key, or for `work` as a new one.

        Whoever goes away takes nothing from the others.

        Raises:
            Exception: Whatever `work` raised.
        """
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = asyncio.create_task(work())
            task.add_done_callback(lambda done: self._remove(key, done))
        return await asyncio.shield(task)

    def _remove(self, key: _Key, task: asyncio.Task[_Value]) -> None:
        del self._tasks[key]
        if not task.cancelled():
            # Retrieve the exception: asyncio logs those that nobody waited for.
            task.exception()


class RevisionLookups:
    """Look-ups by key, never older than the request, however many processes write.

    What SQLite says holds for the callbacks that the event loop has ready: the requests behind them
    came before. With Postgres, look-ups that arrive during a query wait for the next one. Either
    way, under load one query serves many.
    """

    def __init__(self, database: Database) -> None:
        """Connect with the first look-up, beside the database's pool, all of which may be taken."""
        self._database = database
        self._connection: Any = None
        self._found: dict[ContextKey, Revision | None] = {}
        self._wanted: set[ContextKey] = set()
        """Keys of the next query, and the query, which begins once the one before it has ended."""
        self._next: asyncio.Task[dict[ContextKey, Revision]] | None = None
        self._asking = asyncio.Lock()

    async def get(self, key: ContextKey) -> Revision | None:
        """Look up the current revision of a context; None if the context does not exist.

        Raises:
            SQLAlchemyError, sqlite3.Error: SQLite does not answer.
            psycopg.Error: Postgres does not answer.
        """
        if self._database.is_sqlite:
            return self._found[key] if key in self._found else self._ask_sqlite(key)
        self._wanted.add(key)
        if self._next is None:
            self._next = asyncio.create_task(self._ask_next())
        # Whoever goes away takes nothing from the others.
        return (await asyncio.shield(self._next)).get(key)

    def _ask_sqlite(self, key: ContextKey) -> Revision | None:
        """Ask in the event loop, which takes less time than a thread would.

        In WAL mode, a reader never waits for a writer.
        """
        if self._connection is None:
            self._connection = self._database.engine.raw_connection()
            self._connection.detach()
        require_file(self._database.engine.url, self._connection.info)
        try:
            rows = self._connection.dbapi_connection.execute(_SQLITE, key).fetchall()
        except Exception as error:
            self._database.note_damage(error)
            raise
        # Before any request that is still to be read runs, and so for none that comes later.
        asyncio.get_running_loop().call_soon(self._found.pop, key)
        self._found[key] = Revision(*rows[0]) if rows else None
        return self._found[key]

    async def _ask_next(self) -> dict[ContextKey, Revision]:
        async with self._asking:
            # Those who were answered last run first: if they ask again at once, they join this
            # query, which makes queries fewer and larger.
            await asyncio.sleep(0)
            keys, self._wanted, self._next = list(self._wanted), set(), None
            rows = await self._ask_postgres(keys)
        return {(namespace, digest): Revision(*row) for namespace, digest, *row in rows}

    async def _ask_postgres(self, keys: Sequence[ContextKey]) -> Iterable[Sequence[Any]]:
        if self._connection is not None:
            # The connection may have died since its last use while the database is well.
            with suppress(psycopg.OperationalError):
                return await self._query(keys)
        return await self._query(keys)

    async def _query(self, keys: Sequence[ContextKey]) -> Iterable[Sequence[Any]]:
        """Ask over the connection that is kept, or a new one, which is kept unless it fails."""
        connection, self._connection = self._connection, None
        if connection is None:
            connection = await psycopg.AsyncConnection.connect(
                **self._database.psycopg_arguments, autocommit=True, prepare_threshold=None
            )
        try:
            with anyio.fail_after(_LONGEST_QUERY):
                # Arrays in place of the list would take half as long again to encode.
                statement = _POSTGRES.format(", ".join(["(%s, %s)"] * len(keys)))
                cursor = await connection.execute(statement, [part for key in keys for part in key])
                rows = await cursor.fetchall()
        except TimeoutError:
            await connection.close()
            raise psycopg.errors.QueryCanceled("a look-up took too long") from None
        except BaseException:
            await connection.close()
            raise
        self._connection = connection
        return rows  # type: ignore[no-any-return]

    async def close(self) -> None:
        """Close the connection, once the query in progress has given it back."""
        async with self._asking:
            connection, self._connection = self._connection, None
        if connection is not None:
            closed = connection.close()
            if not self._database.is_sqlite:
                await closed
