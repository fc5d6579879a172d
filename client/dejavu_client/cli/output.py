"""Output of the commands: tables for people, plain columns for pipes, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["fail", "note", "say", "show_json", "show_table"]


def say(text: str) -> None:
    """Print a line on standard output."""
    sys.stdout.write(f"{text}\n")


def fail(text: object) -> None:
    """Print an error on standard error; the command ends with the error's exit code."""
    sys.stderr.write(f"error: {text}\n")


def note(text: str) -> None:
    """Print on standard error what the user should know and what is no error."""
    sys.stderr.write(f"note: {text}\n")


def show_json(value: Any) -> None:
    """Print one JSON document on standard output."""
    say(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def show_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table; in a pipe, print columns separated by tabs under a line of names."""
    texts = [["" if cell is None else str(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for line in ([*columns], *texts):
            say("\t".join(line))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in texts:
        table.add_row(*row)
    Console().print(table)
