"""Look-ups in Postgres that share queries, in the event loop and without an ORM."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import psycopg
from psycopg.errors import QueryCanceled
from psycopg.pq import DiagnosticField, ExecStatus
from psycopg.pq.abc import PGresult

from ..storage.database import Database

__all__ = ["GroupedQueries", "Row"]

Row = tuple[str | None, ...]
"""The values of a row in libpq's text format."""

_Key = TypeVar("_Key", bound=tuple[str, ...])
_Value = TypeVar("_Value")

_TIMEOUT = 5.0
"""Seconds that Postgres has to answer a query."""
_BEGIN = b"BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY; SET LOCAL statement_timeout = 5000"
_CANCELED = b"57014"


class GroupedQueries(Generic[_Key, _Value]):
    """Look-ups by key, batched: requests that arrive during a query share the next one.

    A look-up is always part of a query sent after it was requested, so its result is never older
    than the request, however many replicas write. Under load one round trip over one connection
    serves all requests that wait.

    Args:
        database: Its URL is used, over a connection beside its pool.
        statement: Selects, of keys in one array for each of their parts, the rows that exist: the
            parts of the key, and the columns of its value.
        parse: Makes a value of its columns.
        most: The largest number of keys in one query.
    """

    def __init__(
        self, database: Database, statement: str, parse: Callable[[Row], _Value], most: int
    ) -> None:
        """Connect with the first look-up."""
        self._arguments = database.psycopg_arguments
        self._statement = statement.encode()
        self._parse = parse
        self._most = most
        self._connection: _QueryConnection | None = None
        self._waiting: dict[_Key, list[asyncio.Future[_Value | None]]] = {}
        self._querying: asyncio.Task[None] | None = None

    async def get(self, key: _Key) -> _Value | None:
        """Look up a key as part of the next query; None if it does not exist.

        Raises:
            psycopg.Error: Postgres does not answer.
        """
        future: asyncio.Future[_Value | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append(future)
        if self._querying is None or self._querying.done():
            self._querying = asyncio.create_task(self._query_waiting())
        return await future

    async def _query_waiting(self) -> None:
        while self._waiting:
            # Let the requests answered by the last query run first: those that ask again at once
            # join the next query, which makes queries fewer and larger.
            await asyncio.sleep(0)
            batch = {key: self._waiting.pop(key) for key in list(self._waiting)[: self._most]}
            values: dict[_Key, _Value] = {}
            failure: Exception | None = None
            try:
                values = await self._query(list(batch))
            except Exception as error:
                failure = error
                await self._disconnect()
            for key, futures in batch.items():
                # Requests that were cancelled are done.
                for future in (future for future in futures if not future.done()):
                    if failure is None:
                        future.set_result(values.get(key))
                    else:
                        future.set_exception(failure)

    async def _query(self, keys: list[_Key]) -> dict[_Key, _Value]:
        length = len(keys[0])
        rows = await self._fetch(keys)
        return {row[:length]: self._parse(row[length:]) for row in rows}  # type: ignore[misc]

    async def _fetch(self, keys: Sequence[_Key]) -> list[Row]:
        if self._connection is not None:
            try:
                return await self._connection.query(self._statement, keys)
            except _QueryTimeoutError:
                raise
            except psycopg.OperationalError:
                # The connection may have died since its last use while the database is well.
                await self._disconnect()
        self._connection = await _QueryConnection.connect(self._arguments)
        return await self._connection.query(self._statement, keys)

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
    """A connection whose queries libpq sends, one at a time.

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
        self._is_hurried = False
        """Whether the database's own `statement_timeout` has ended a query."""
        self._loop.add_reader(self._socket, self._read)

    @classmethod
    async def connect(cls, arguments: dict[str, Any]) -> _QueryConnection:
        """Connect to Postgres.

        Raises:
            psycopg.Error: Postgres does not answer.
        """
        return cls(await psycopg.AsyncConnection.connect(**arguments, autocommit=True))

    async def query(self, statement: bytes, keys: Sequence[tuple[str, ...]]) -> list[Row]:
        """Run a statement with an array for each part of the keys.

        Raises:
            psycopg.Error: The connection cannot be used any more.
        """
        arrays = [_text_array(part) for part in zip(*keys, strict=True)]
        send = partial(self._pg.send_query_params, statement, arrays)
        if not self._is_hurried:
            try:
                return _rows(await self._execute(send))
            except QueryCanceled:
                self._is_hurried = True
        # A transaction for one query takes two more round trips, but can have a limit of its own.
        await self._execute(partial(self._pg.send_query, _BEGIN))
        rows = _rows(await self._execute(send))
        await self._execute(partial(self._pg.send_query, b"COMMIT"))
        return rows

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
            is_canceled = result.error_field(DiagnosticField.SQLSTATE) == _CANCELED
            kind = QueryCanceled if is_canceled else psycopg.OperationalError
            raise kind(result.error_message.decode(errors="replace"))
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


def _rows(result: PGresult) -> list[Row]:
    return [
        tuple(_decode(result.get_value(row, column)) for column in range(result.nfields))
        for row in range(result.ntuples)
    ]


def _decode(value: bytes | None) -> str | None:
    return None if value is None else bytes(value).decode()
