"""What both databases need written differently: functions, upserts, the clock, and long lists."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import Any, ClassVar, TypeVar

from sqlalchemy import ColumnElement, Connection, Double, Integer, Table, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

T = TypeVar("T")

_CHUNK = 500


def chunks(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield values, as many at a time as one IN list may have."""
    return (values[start : start + _CHUNK] for start in range(0, len(values), _CHUNK))


def insert(connection: Connection, table: Table) -> Any:
    """Return the dialect's insert with `on_conflict_do_nothing` and `on_conflict_do_update`."""
    return sqlite.insert(table) if connection.dialect.name == "sqlite" else postgresql.insert(table)


class _Function(FunctionElement[T]):
    """SQL expression that each database writes in its own way, with its argument in braces."""

    inherit_cache = True
    postgresql: ClassVar[str]
    sqlite: ClassVar[str]


@compiles(_Function)
def _compile(element: _Function[Any], compiler: SQLCompiler, **options: Any) -> str:
    template = element.sqlite if compiler.dialect.name == "sqlite" else element.postgresql
    return template.format(compiler.process(element.clauses, **options))


class epoch(_Function[float]):  # noqa: N801 - reads like the SQL function it is
    """SQL expression for the present time by the database's clock, in seconds since 1970.

    Replicas agree on it, whatever their own clocks say.
    """

    type = Double()
    inherit_cache = True
    postgresql = "CAST(extract(epoch FROM clock_timestamp()) AS double precision)"
    sqlite = "((julianday('now') - 2440587.5) * 86400.0)"


class day_of(_Function[int]):  # noqa: N801 - reads like an SQL function
    """SQL expression for the day (UTC) of a time in seconds since 1970, counted from then."""

    type = Integer()
    inherit_cache = True
    postgresql = "CAST(floor(({}) / 86400) AS integer)"
    sqlite = "CAST(({}) / 86400 AS integer)"


def database_time(connection: Connection) -> datetime:
    """Return the present time by the database's clock."""
    return to_datetime(float(connection.execute(select(epoch())).scalar_one()))


def to_datetime(seconds: float) -> datetime:
    """Return a time that is stored in the database."""
    return datetime.fromtimestamp(seconds, timezone.utc)


class byte_length(_Function[int]):  # noqa: N801 - reads like an SQL function
    """SQL expression for the bytes of a text in UTF-8."""

    type = Integer()
    inherit_cache = True
    postgresql = "octet_length({})"
    sqlite = "length(CAST({} AS BLOB))"


# LIKE ignores the case of letters on SQLite and minds it on Postgres.


def contains(text: ColumnElement[Any], part: str) -> ColumnElement[bool]:
    """Return whether a text contains a part that is not empty, letter by letter."""
    return func.replace(text, part, "") != text


def starts_with(text: ColumnElement[Any], beginning: str) -> ColumnElement[bool]:
    """Return whether a text starts with a beginning, letter by letter."""
    return func.substr(text, 1, len(beginning)) == beginning


def ends_with(text: ColumnElement[Any], ending: str) -> ColumnElement[bool]:
    """Return whether a text ends with an ending that is not empty, letter by letter."""
    return func.substr(text, func.length(text) - len(ending) + 1, len(ending)) == ending
