"""How commands speak: tables for people, plain columns for pipes, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer

from dejavu_cache.stores import Store, TieredStore, open_store
from dejavu_cache.stores.default import default_store

__all__ = ["JsonOption", "StoreOption", "open_chosen_store", "say", "show_json", "show_table"]

StoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        metavar="URL",
        help="A folder or a URL; else DEJAVU_CACHE_URL, else your own cache.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


PATIENCE = 30.0
"""Seconds that a person waits for a server; a launch waits less."""


def open_chosen_store(url: str) -> Store:
    """The store that `--store` names, or this user's, as patient as a person is."""
    store = open_store(url) if url else default_store()
    for tier in store.tiers if isinstance(store, TieredStore) else [store]:
        if hasattr(tier, "wait"):
            tier.wait = PATIENCE
    return store


def say(text: str) -> None:
    """A line on standard output."""
    sys.stdout.write(f"{text}\n")


def show_json(value: Any) -> None:
    """One JSON document on standard output."""
    say(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def show_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table on a terminal; in a pipe, columns separated by tabs under a line of names."""
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
