"""Output of the commands: tables for people, plain columns for pipes, JSON for programs."""

from __future__ import annotations

import json
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["fail", "note", "say", "say_indented", "show_json", "show_table"]


def say(text: str) -> None:
    """Print a line on standard output."""
    sys.stdout.write(f"{text}\n")


def say_indented(text: str) -> None:
    """Print a line indented by two; on a terminal, as many lines as its width asks for."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    say(textwrap.fill(text, width, initial_indent="  ", subsequent_indent="    "))


def fail(text: object) -> None:
    """Print an error on standard error; the command ends with the error's exit code."""
    sys.stderr.write(f"error: {text}\n")


def note(text: str) -> None:
    """Print on standard error what the user should know and what is no error."""
    sys.stderr.write(f"note: {text}\n")


def show_json(value: Any) -> None:
    """Print one JSON document on standard output."""
    say(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def show_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], optional: Sequence[str] = ()
) -> None:
    """Print a table; in a pipe, print columns separated by tabs under a line of names.

    Where a terminal is too narrow, columns move together, their names are stacked at underscores
    and spaces, and then optional columns are left out.

    Args:
        columns: the names of the columns.
        rows: the cells of each row; None is an empty cell.
        optional: columns that a narrow terminal does without, the least important one first.
    """
    texts = [["" if cell is None else str(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for line in ([*columns], *texts):
            say("\t".join(line))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    names, gap = list(columns), 2
    if _width(names, texts, gap) > console.width:
        gap = 1
        names = [name.replace("_", "_\n").replace(" ", "\n") for name in names]
        for name in optional:
            if _width(names, texts, gap) > console.width:
                index = list(columns).index(name)
                columns = [*columns[:index], *columns[index + 1 :]]
                names.pop(index)
                texts = [[*row[:index], *row[index + 1 :]] for row in texts]
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for index, name in enumerate(names):
        numeric = all(_NUMBER.fullmatch(row[index]) for row in texts)
        table.add_column(escape(name), justify="right" if numeric else "left", overflow="fold")
    for row in texts:
        table.add_row(*map(escape, row))
    console.print(table)


_NUMBER = re.compile(r"-|(-?[0-9][0-9.,e+-]*[x%]?)?")


def _width(names: Sequence[str], rows: Sequence[Sequence[str]], gap: int) -> int:
    """Return the width of a table with a gap between its columns, in characters."""
    header = [max(map(len, name.split("\n"))) for name in names]
    cells = [max((len(row[index]) for row in rows), default=0) for index in range(len(names))]
    return sum(map(max, header, cells)) + gap * (len(names) - 1)
