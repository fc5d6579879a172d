"""`freeze`: a snapshot that a job can name, and that cannot change under it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dejavu_cache.stores.snapshot import freeze as write_snapshot

from ..output import StoreOption, open_chosen_store, say

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(freeze)


def freeze(
    folder: Annotated[Path, typer.Argument(help="Where the snapshot is written.")],
    kernel: Annotated[str, typer.Option(help="Only this kernel.")] = "",
    store: StoreOption = "",
) -> None:
    """Write a snapshot of a store, named by its content; prints the URL by which a job uses it."""
    with open_chosen_store(store) as held:
        say(write_snapshot(held, folder, kernel or None).url)
