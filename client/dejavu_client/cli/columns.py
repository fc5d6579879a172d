"""Columns of tables about scenarios: those that vary, and the order of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from dejavu_cache.errors import SettingsError
from dejavu_cache.model.scenario import Scenario

from .output import say_indented

__all__ = [
    "ordered_values",
    "say_constants",
    "settings_text",
    "sort_by_values",
    "sort_rows",
    "split_columns",
]

_Row = TypeVar("_Row")


def ordered_values(scenario: Scenario, keys: Sequence[str]) -> dict[str, Any]:
    """Return a scenario's arguments and dtypes by name, the named keys first."""
    values = scenario.values
    return {key: values[key] for key in dict.fromkeys([*keys, *values]) if key in values}


def split_columns(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], dict[str, Any]]:
    """Return the names whose values differ between rows, and the values of the others."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    values = {name: [row.get(name) for row in rows] for name in names}
    varying = [name for name in names if any(value != values[name][0] for value in values[name])]
    return varying, {name: values[name][0] for name in names if name not in varying}


def say_constants(title: str, constants: Mapping[str, Any]) -> None:
    """Print what is the same in all rows of a table, above it."""
    if constants:
        say_indented(f"{title}: {settings_text(constants)}")


def settings_text(settings: Mapping[str, Any]) -> str:
    """Return settings as `NAME=VALUE, …`."""
    return ", ".join(f"{name}={value}" for name, value in settings.items())


def sort_rows(
    rows: Iterable[_Row],
    values_of: Callable[[_Row], Mapping[str, Any]],
    columns: Sequence[str],
    sort: str,
) -> list[_Row]:
    """Return rows in the order of a column; numbers by their value, before texts.

    Args:
        rows: the rows, which keep their order where the column's values are equal.
        values_of: returns a row's values by column.
        columns: the columns that there are.
        sort: the column; with `-` before it, the largest value first. Empty: no order.

    Raises:
        SettingsError: there is no such column.
    """
    name = sort.removeprefix("-")
    if not name:
        return list(rows)
    if name not in columns:
        raise SettingsError(f"--sort {name!r}: no such column; there are {', '.join(columns)}")

    def order(row: _Row) -> tuple[int, float, str]:
        return _order(values_of(row).get(name))

    return sorted(rows, key=order, reverse=sort.startswith("-"))


def sort_by_values(
    rows: Iterable[_Row], values_of: Callable[[_Row], Mapping[str, Any]]
) -> list[_Row]:
    """Return rows in the order of all their values, from the first column on."""
    return sorted(rows, key=lambda row: [_order(value) for value in values_of(row).values()])


def _order(value: Any) -> tuple[int, float, str]:
    """Return a key that sorts numbers by their value, before texts."""
    try:
        return 0, float(str(value).removesuffix("x")), ""
    except ValueError:
        return 1, 0.0, str(value)
