"""`report`: one static HTML page about the tuned kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dejavu_cache.errors import SettingsError
from dejavu_cache.system.notices import counted

from ..chosen_store import open_existing_store
from ..options import (
    DeviceOption,
    OptionalKernelArgument,
    StoreOption,
    TritonOption,
    parse_assignments,
)
from ..output import say
from ..output_file import open_output
from ..record_queries import newest_record_sets

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(report)


def report(
    kernel: OptionalKernelArgument = "",
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="The page.")] = Path(
        "report.html"
    ),
    default: Annotated[
        list[str] | None,
        typer.Option(
            "--default",
            metavar="NAME=VALUE",
            help="Of the default config, to show its cost; may repeat.",
        ),
    ] = None,
    store: StoreOption = "",
    device: DeviceOption = "",
    triton: TritonOption = "",
) -> None:
    """Write one HTML page: coverage, winners, costs, and comparisons of GPUs and Triton versions.

    Costs are those of the default config, of the best single config and of decision trees. Name
    several stores, separated by commas, to compare what they hold.
    """
    from dejavu_cache.report.page import has_values, render

    default_values = parse_assignments(default, "--default")
    with open_existing_store(store) as source:
        record_sets = list(newest_record_sets(source, kernel, device, triton))
        trees = [stored.tree for stored in source.trees()]
    records = [record for record_set in record_sets for record in record_set.records]
    configs = {measurement.config for record in records for measurement in record.measurements}
    if default_values and not any(has_values(config, default_values) for config in configs):
        texts = " ".join(default or ())
        raise SettingsError(f"--default {texts}: no measured config has these values")
    page = render(record_sets, trees, default_values, source.url)
    with open_output(str(to)) as file:
        file.write(page)
    environments = counted(len(record_sets), "environment")
    say(f"{to}: {counted(len(records), 'scenario')} in {environments}")
    if not record_sets:
        raise typer.Exit(1)
