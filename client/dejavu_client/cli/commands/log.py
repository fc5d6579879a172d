"""`log`: who changed what on a team's server."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import typer

from ..chosen_server import open_server
from ..errors import NothingFoundError
from ..kernel_names import kernel_matches
from ..options import JsonOption, KernelOption, ServerOption, require_moments
from ..output import show_json, show_table

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(log)


def log(
    server: ServerOption = "",
    kernel: KernelOption = "",
    actor: Annotated[str, typer.Option(help="Only who has this in the name.")] = "",
    action: Annotated[str, typer.Option(help="Only this action, such as pin or delete.")] = "",
    since: Annotated[str, typer.Option(help="From this time on: 2026-01-31T12:00:00Z.")] = "",
    until: Annotated[str, typer.Option(help="Before this time.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="The most entries to print.")] = 100,
    all_namespaces: Annotated[
        bool, typer.Option("--all", help="Of all namespaces, and of the tokens.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List who pinned, promoted, deleted and imported what, newest first."""
    require_moments(since=since, until=until)
    filters = {"actor": actor, "action": action, "since": since, "until": until}
    remote = open_server(server)
    logged = remote.client.log_entries(filters, 1000 if kernel else limit, all_namespaces)
    chosen = (entry for entry in logged if kernel_matches(entry["kernel"], kernel))
    entries = list(islice(chosen, limit))
    if kernel and not entries:
        raise NothingFoundError(f"{remote.url} logged no change of {kernel}")
    if as_json:
        show_json(entries)
        return
    rows = [
        (
            entry["at"],
            entry["actor"],
            entry["action"],
            entry["namespace"],
            entry["kernel"],
            "  ".join(f"{name}={value}" for name, value in entry["detail"].items() if value),
        )
        for entry in entries
    ]
    show_table(["time", "actor", "action", "namespace", "kernel", "what"], rows)
