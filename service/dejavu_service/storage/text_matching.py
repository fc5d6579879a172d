"""Comparisons and lengths of texts in SQL on which both databases agree.

LIKE ignores the case of letters on SQLite and minds it on Postgres.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Integer, Text, func
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

__all__ = ["byte_length", "contains", "ends_with", "starts_with"]


class _Position(FunctionElement[int]):
    """SQL expression for where a text contains another one, from 1; 0 if it does not."""

    type = Integer()
    inherit_cache = True


@compiles(_Position, "postgresql")
def _postgres_position(element: _Position, compiler: SQLCompiler, **options: Any) -> str:
    return f"strpos({compiler.process(element.clauses, **options)})"


@compiles(_Position, "sqlite")
def _sqlite_position(element: _Position, compiler: SQLCompiler, **options: Any) -> str:
    return f"instr({compiler.process(element.clauses, **options)})"


class _Ending(FunctionElement[str]):
    """SQL expression for the last characters of a text, or all if it has fewer."""

    type = Text()
    inherit_cache = True


@compiles(_Ending, "postgresql")
def _postgres_ending(element: _Ending, compiler: SQLCompiler, **options: Any) -> str:
    text, length = (compiler.process(clause, **options) for clause in element.clauses)
    return f"right({text}, {length})"


@compiles(_Ending, "sqlite")
def _sqlite_ending(element: _Ending, compiler: SQLCompiler, **options: Any) -> str:
    text, length = (compiler.process(clause, **options) for clause in element.clauses)
    return f"substr({text}, -{length})"


class byte_length(FunctionElement[int]):  # noqa: N801 - reads like an SQL function
    """SQL expression for the bytes of a text in UTF-8."""

    type = Integer()
    inherit_cache = True


@compiles(byte_length, "postgresql")
def _postgres_length(element: byte_length, compiler: SQLCompiler, **options: Any) -> str:
    return f"octet_length({compiler.process(element.clauses, **options)})"


@compiles(byte_length, "sqlite")
def _sqlite_length(element: byte_length, compiler: SQLCompiler, **options: Any) -> str:
    return f"length(CAST({compiler.process(element.clauses, **options)} AS BLOB))"


def contains(text: ColumnElement[Any], part: str) -> ColumnElement[bool]:
    """Return whether a text contains a part, letter by letter."""
    return _Position(text, part) > 0


def starts_with(text: ColumnElement[Any], beginning: str) -> ColumnElement[bool]:
    """Return whether a text starts with a beginning, letter by letter."""
    return func.substr(text, 1, len(beginning)) == beginning


def ends_with(text: ColumnElement[Any], ending: str) -> ColumnElement[bool]:
    """Return whether a text ends with an ending that is not empty, letter by letter."""
    return _Ending(text, len(ending)) == ending
