"""SQL functions and comparisons of texts that mean the same on both databases."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

from sqlalchemy import ColumnElement, Double, Integer, Text, func
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

__all__ = ["byte_length", "contains", "ends_with", "epoch", "measured_by", "starts_with"]

T = TypeVar("T")


class _Function(FunctionElement[T]):
    """SQL expression that each database writes in its own way, with its arguments in braces."""

    inherit_cache = True
    postgresql: ClassVar[str]
    sqlite: ClassVar[str]


@compiles(_Function)
def _compile(element: _Function[Any], compiler: SQLCompiler, **options: Any) -> str:
    template = element.sqlite if compiler.dialect.name == "sqlite" else element.postgresql
    return template.format(*(compiler.process(clause, **options) for clause in element.clauses))


class epoch(_Function[float]):  # noqa: N801 - reads like the SQL function it is
    """SQL expression for the present time by the database's clock, in seconds since 1970."""

    type = Double()
    inherit_cache = True
    postgresql = "CAST(extract(epoch FROM clock_timestamp()) AS double precision)"
    sqlite = "((julianday('now') - 2440587.5) * 86400.0)"


class measured_by(_Function[str]):  # noqa: N801 - reads like an SQL function
    """SQL expression for who measured, of the JSON text of a measurement; null if it is absent."""

    type = Text()
    inherit_cache = True
    postgresql = "(CAST({} AS json) ->> 'by')"
    sqlite = "json_extract({}, '$.by')"


class byte_length(_Function[int]):  # noqa: N801 - reads like an SQL function
    """SQL expression for the bytes of a text in UTF-8."""

    type = Integer()
    inherit_cache = True
    postgresql = "octet_length({})"
    sqlite = "length(CAST({} AS BLOB))"


class _Position(_Function[int]):
    """SQL expression for where a text contains another one, from 1; 0 if it does not."""

    type = Integer()
    inherit_cache = True
    postgresql = "strpos({}, {})"
    sqlite = "instr({}, {})"


class _Ending(_Function[str]):
    """SQL expression for the last characters of a text, or all if it has fewer."""

    type = Text()
    inherit_cache = True
    postgresql = "right({}, {})"
    sqlite = "substr({}, -{})"


# LIKE ignores the case of letters on SQLite and minds it on Postgres.


def contains(text: ColumnElement[Any], part: str) -> ColumnElement[bool]:
    """Return whether a text contains a part, letter by letter."""
    return _Position(text, part) > 0


def starts_with(text: ColumnElement[Any], beginning: str) -> ColumnElement[bool]:
    """Return whether a text starts with a beginning, letter by letter."""
    return func.substr(text, 1, len(beginning)) == beginning


def ends_with(text: ColumnElement[Any], ending: str) -> ColumnElement[bool]:
    """Return whether a text ends with an ending that is not empty, letter by letter."""
    return _Ending(text, len(ending)) == ending
