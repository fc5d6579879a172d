"""Output of the commands: lines, tables, JSON and files."""

import io
import json
import logging
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from dejavu_cache.errors import StoreError
from dejavu_cache.system.notices import logger, printable
from dejavu_cache.system.safe_files import open_named_file

from .queries import shorten_kernels


def say(text: str) -> None:
    """Print a line on standard output; what a store holds may be a stranger's."""
    sys.stdout.write(f"{printable(text)}\n")


def say_indented(text: str, indent: int = 2) -> None:
    """Print a line indented by some columns; on a terminal, as many lines as its width asks for."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    margin = " " * indent
    say(
        textwrap.fill(
            text,
            width,
            initial_indent=margin,
            subsequent_indent=margin + "  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    )


def fail(text: object) -> None:
    """Print an error on standard error; the command ends with the error's exit code."""
    sys.stderr.write(f"error: {printable(str(text))}\n")


def note(text: str) -> None:
    """Print on standard error what the user should know and what is no error."""
    sys.stderr.write(f"note: {printable(text)}\n")


def show_progress() -> None:
    """Print the library's log on standard error, with how far a long command is."""
    if not logger.handlers:  # else DEJAVU_CACHE_LOG says what is shown
        logger.addHandler(logging.StreamHandler())
        logger.setLevel(logging.INFO)


def show_json(value: Any) -> None:
    """Print one JSON document on standard output, in ASCII where that takes no other characters."""
    say(_json_text(value))


def show_json_items(items: Iterable[Any]) -> None:
    """Print a list as `show_json` does, item by item."""
    opening = "[\n"
    for item in items:
        sys.stdout.write(opening + printable("  " + _json_text(item).replace("\n", "\n  ")))
        opening = ",\n"
    say("[]" if opening == "[\n" else "\n]")


def _json_text(value: Any) -> str:
    takes_all = (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    return json.dumps(value, indent=2, ensure_ascii=not takes_all, default=str)


def show_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    optional: Sequence[str] = (),
    constant: Sequence[str] = (),
) -> None:
    """Print a table; in a pipe, print columns separated by tabs under a line of names.

    Where a terminal is too narrow, columns move together, their names are stacked at underscores
    and spaces, kernels are named by their ends, and then optional columns are left out.

    Args:
        columns: the names of the columns.
        rows: the cells of each row; None is an empty cell.
        optional: columns that a narrow terminal does without, the least important one first.
        constant: columns that a terminal shows above the table if all rows have one value there.
    """
    lines = [list(map(_text, row)) for row in rows]
    table = {name: [line[index] for line in lines] for index, name in enumerate(columns)}
    if not sys.stdout.isatty():
        for line in (columns, *zip(*table.values(), strict=True)):
            say("\t".join(line))
        return
    same = [name for name in constant if len(lines) > 1 and len({*table[name]}) == 1]
    if same:
        say(f"all: {', '.join(f'{name} {table.pop(name)[0]}' for name in same)}")
    width = shutil.get_terminal_size().columns
    gap = 2 if _width(table, 2) <= width else 1
    if gap == 1:
        table = {_stack_words(name): cells for name, cells in table.items()}
        if "kernel" in table and _width(table, 1) > width:
            table["kernel"] = shorten_kernels(table["kernel"])
        for name in optional:
            if _width(table, 1) > width:
                table.pop(_stack_words(name), None)
    _print_table(table, gap)


Table = dict[str, list[str]]
"""Cells by column."""

_NUMBER = re.compile(r"-|(-?[0-9][0-9.,e+-]*[x%]?)?")


def _text(cell: Any) -> str:
    """Return the text of a cell, which is one line and one column whatever it says."""
    text = "" if cell is None else printable(str(cell))
    return text.replace("\n", " ").replace("\t", " ")


def _stack_words(name: str) -> str:
    return name.replace("_", "_\n").replace(" ", "\n")


def _print_table(table: Table, gap: int) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table as RichTable

    printed = RichTable(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for name, cells in table.items():
        numeric = all(map(_NUMBER.fullmatch, cells))
        printed.add_column(escape(name), justify="right" if numeric else "left", overflow="fold")
    for row in zip(*table.values(), strict=True):
        printed.add_row(*map(escape, row))
    size = shutil.get_terminal_size()  # for a dumb terminal, rich would take its own
    Console(highlight=False, width=size.columns, height=size.lines).print(printed)


def _width(table: Table, gap: int) -> int:
    """Return the width of a table with a gap between its columns, in characters."""
    widths = [
        max(len(text) for text in (*name.split("\n"), *cells)) for name, cells in table.items()
    ]
    return sum(widths) + gap * (len(widths) - 1)


@contextmanager
def open_output(file: str) -> Iterator[TextIO]:
    """Yield a text file to write; the file of that name is replaced after the block.

    If the block raises, what was there before stays. Pipes and devices are written directly.

    Args:
        file: the path, whose folder must exist; `-` is standard output.

    Raises:
        StoreError: the file cannot be written.
    """
    if file == "-":
        if isinstance(sys.stdout, io.TextIOWrapper):  # files are UTF-8, whatever the terminal is
            sys.stdout.reconfigure(encoding="utf-8")
        yield sys.stdout
        return
    path = Path(file)
    try:
        with open_named_file(path) as binary:
            text = io.TextIOWrapper(binary, encoding="utf-8", newline="\n", write_through=True)
            yield text
            text.flush()
            text.detach()
    except OSError as error:
        raise StoreError(
            f"{file} cannot be written: {error.strerror or error}; "
            "what was there before is unchanged"
        ) from None
