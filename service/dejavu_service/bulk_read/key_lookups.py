"""Look-ups by key that every launch of a fleet waits for, in the event loop and without an ORM."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from ..storage.contexts import ContextKey, Revision
from ..storage.database import Database
from .grouped_queries import GroupedQueries

__all__ = ["KeyLookups", "RecordKey", "StoredText", "open_record_texts", "open_revisions"]

RecordKey = tuple[str, str, str]
"""A namespace, the digest of a context, and that of a scenario."""


class StoredText(NamedTuple):
    """The revision of a context with records, and the JSON text of one of them, or None."""

    revision: str
    text: str | None


_Key = TypeVar("_Key", bound=tuple[str, ...])
_KeyIn = TypeVar("_KeyIn", bound=tuple[str, ...], contravariant=True)
_Value = TypeVar("_Value")
_ValueOut = TypeVar("_ValueOut", covariant=True)

_REVISION_COLUMNS = "namespace, digest, id, revision, records"
_SQLITE_REVISION = f"SELECT {_REVISION_COLUMNS} FROM contexts WHERE namespace = ? AND digest = ?"
_POSTGRES_REVISIONS = f"""
    SELECT {_REVISION_COLUMNS} FROM contexts JOIN unnest($1::text[], $2::text[]) AS wanted (n, d)
    ON namespace = wanted.n AND digest = wanted.d
"""
_MOST_REVISIONS = 200

_SQLITE_TEXT = """
    SELECT c.namespace, c.digest, r.scenario, c.revision, r.text FROM contexts AS c
    LEFT JOIN records AS r ON r.context_id = c.id AND r.scenario = ?3
    WHERE c.namespace = ?1 AND c.digest = ?2 AND c.records > 0
"""
_POSTGRES_TEXTS = """
    SELECT c.namespace, c.digest, wanted.s, c.revision, r.text
    FROM unnest($1::text[], $2::text[], $3::text[]) AS wanted (n, d, s)
    JOIN contexts AS c ON c.namespace = wanted.n AND c.digest = wanted.d AND c.records > 0
    LEFT JOIN records AS r ON r.context_id = c.id AND r.scenario = wanted.s
"""
_MOST_TEXTS = 20
"""Records in one query: some have many thousand measurements."""


class KeyLookups(Protocol[_KeyIn, _ValueOut]):
    """Look-ups of one kind of value in a database."""

    async def get(self, key: _KeyIn) -> _ValueOut | None:
        """Look up what the database has now; None if the key does not exist.

        Raises:
            SQLAlchemyError, sqlite3.Error: SQLite does not answer.
            psycopg.Error: Postgres does not answer.
        """

    async def close(self) -> None:
        """Close the connection."""


def open_revisions(database: Database) -> KeyLookups[ContextKey, Revision]:
    """Return the look-ups of contexts' current revisions; the first one connects."""
    if database.is_sqlite:
        return SqliteLookups(database, _SQLITE_REVISION, _parse_revision)
    return GroupedQueries(database, _POSTGRES_REVISIONS, _parse_revision, _MOST_REVISIONS)


def open_record_texts(database: Database) -> KeyLookups[RecordKey, StoredText]:
    """Return the look-ups of records; the first one connects."""
    if database.is_sqlite:
        return SqliteLookups(database, _SQLITE_TEXT, StoredText._make)
    return GroupedQueries(database, _POSTGRES_TEXTS, StoredText._make, _MOST_TEXTS)


class SqliteLookups(Generic[_Key, _Value]):
    """Look-ups in SQLite, made in the event loop.

    A look-up takes some microseconds, less than handing it to a thread would, and in WAL mode a
    reader never waits for a writer.
    """

    def __init__(self, database: Database, statement: str, parse: Callable[[Any], _Value]) -> None:
        """Connect beside the database's pool, which may be small, with the first look-up."""
        self._database = database
        self._statement = statement
        self._parse = parse
        self._connection: Any = None

    async def get(self, key: _Key) -> _Value | None:
        """Look up a key by the indexes."""
        if self._connection is None:
            self._connection = self._database.engine.raw_connection()
            self._connection.detach()
        try:
            row = self._connection.dbapi_connection.execute(self._statement, key).fetchone()
        except sqlite3.Error as error:
            self._database.note_damage(error)
            raise
        return None if row is None else self._parse(row[len(key) :])

    async def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()


def _parse_revision(columns: Any) -> Revision:
    identity, revision, records = columns
    return Revision(int(identity), revision, int(records))
