"""`report`: one static HTML page about what is tuned."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dejavu_cache.errors import SettingsError

from ..output import StoreOption, open_chosen_store, say
from .heuristics import DeviceOption, TritonOption, newest
from .listing import assignments

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(report)


def report(
    kernel: Annotated[
        str, typer.Argument(help="Only this kernel, by its name or the end of it.")
    ] = "",
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="The page.")] = Path(
        "report.html"
    ),
    default: Annotated[
        list[str],
        typer.Option(
            "--default",
            metavar="NAME=VALUE",
            help="Of the default config, to show its cost; may repeat.",
        ),
    ] = [],
    store: StoreOption = "",
    device: DeviceOption = "",
    triton: TritonOption = "",
) -> None:
    """Write one HTML page: coverage, winners, what the default and trees cost, how GPUs and Triton versions differ.

    Name several stores, separated by commas, to compare what they hold.
    """
    from dejavu_cache.report.page import render
    from dejavu_cache.report.selection_rules import has_values

    wanted = assignments(default, "--default")
    with open_chosen_store(store) as held:
        wholes = list(newest(held, kernel, device, triton))
        trees = [each.tree for each in held.trees()]
    configs = {
        each.config for whole in wholes for record in whole.records for each in record.measurements
    }
    if wanted and not any(has_values(config, wanted) for config in configs):
        raise SettingsError(f"--default {' '.join(default)}: no measured config has these values")
    page = render(wholes, trees, wanted, held.url)
    try:
        to.write_text(page, encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"--to {to}: it cannot be written: {error.strerror}") from None
    say(
        f"{to}: {sum(len(whole.records) for whole in wholes)} scenarios in {len(wholes)} environments"
    )
    if not wholes:
        raise typer.Exit(1)
