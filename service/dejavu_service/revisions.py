"""The current revisions of contexts: what every read asks first, so without a thread and without an ORM."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import psycopg

from .database import Database
from .storage.contexts import Key, Revision

__all__ = ["GroupedRevisions", "Revisions", "SqliteRevisions", "open_revisions"]

_COLUMNS = "namespace, digest, id, revision, records"
_ONE = f"SELECT {_COLUMNS} FROM contexts WHERE namespace = ? AND digest = ?"
_SOME = f"""
    SELECT {_COLUMNS} FROM contexts JOIN unnest(%s::text[], %s::text[]) AS wanted (n, d)
    ON namespace = wanted.n AND digest = wanted.d
"""
_MOST = 200
"""Keys in one question."""
_PATIENCE = 5.0
"""Seconds for an answer, connecting included."""


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
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._wanted: dict[Key, asyncio.Future[Revision | None]] = {}
        self._asking: asyncio.Task[None] | None = None

    async def get(self, key: Key) -> Revision | None:
        """The answer to the next question."""
        future = self._wanted.get(key)
        if future is None:
            future = self._wanted[key] = asyncio.get_running_loop().create_future()
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        return await asyncio.shield(future)

    async def _ask(self) -> None:
        while self._wanted:
            asked = {key: self._wanted.pop(key) for key in list(self._wanted)[:_MOST]}
            try:
                found = await asyncio.wait_for(self._fetch(list(asked)), _PATIENCE)
            except Exception as error:
                await self._hang_up()
                for future in asked.values():
                    future.set_exception(_unanswered(error))
                    future.exception()  # seen: the caller may have gone away
            else:
                for key, future in asked.items():
                    future.set_result(found.get(key))

    async def _fetch(self, keys: list[Key]) -> dict[Key, Revision]:
        parameters = ([namespace for namespace, _ in keys], [digest for _, digest in keys])
        fresh = self._connection is None
        try:
            rows = await self._query(parameters)
        except psycopg.OperationalError:
            if fresh:
                raise
            # The connection died since it was last used; the database may be there all the same.
            await self._hang_up()
            rows = await self._query(parameters)
        return {(row[0], row[1]): Revision(row[2], row[3], row[4]) for row in rows}

    async def _query(self, parameters: tuple[list[str], list[str]]) -> list[Any]:
        if self._connection is None:
            self._connection = await psycopg.AsyncConnection.connect(**self._arguments, autocommit=True)
            self._connection.prepare_threshold = 0
        return await (await self._connection.execute(_SOME, parameters)).fetchall()

    async def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def close(self) -> None:
        """Hangs up."""
        if self._asking is not None:
            self._asking.cancel()
        await self._hang_up()


def _unanswered(error: Exception) -> Exception:
    late = isinstance(error, (TimeoutError, asyncio.TimeoutError))  # two classes on 3.10
    return psycopg.OperationalError("no answer in time") if late else error
