"""`quarantine`: list, take back and restore what one token or one host wrote to a server."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dejavu_cache.errors import SettingsError
from dejavu_cache.system.notices import counted

from ...http.errors import RefusedError
from ..chosen_server import open_server
from ..errors import NothingFoundError
from ..options import JsonOption, ServerOption, require_moments
from ..output import say, show_json, show_table

__all__ = ["register"]

quarantine_app = typer.Typer(
    no_args_is_help=True,
    help="What one token or host wrote to a server: list it, take it back.",
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(quarantine_app, name="quarantine")


@quarantine_app.command("writers")
def list_writers(server: ServerOption = "", as_json: JsonOption = False) -> None:
    """List the tokens and hosts that wrote measurements, the latest first."""
    writers = open_server(server).client.list_writers()
    if as_json:
        show_json(writers)
        return
    rows = [
        (item["sender"], item["by"], item["measurements"], item["standing"], item["last"])
        for item in writers
    ]
    show_table(["token", "user and host", "measurements", "standing", "last"], rows)


@quarantine_app.command("add")
def add(
    server: ServerOption = "",
    token: Annotated[str, typer.Option(help="A token's id, or the name of tokens.")] = "",
    host: Annotated[str, typer.Option(help="A host, or user@host.")] = "",
    since: Annotated[str, typer.Option(help="What came from this time on.")] = "",
    until: Annotated[str, typer.Option(help="What came before this time.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do it; else it is only counted.")] = False,
) -> None:
    """Take back from all readers and copies what a token or a host wrote to the namespace."""
    if not token and not host:
        raise SettingsError("quarantine add: name --token or --host; `writers` lists them")
    require_moments(since=since, until=until)
    remote = open_server(server)
    wish: dict[str, Any] = {"token": token, "host": host, "since": since, "until": until}
    wanted = {name: value for name, value in wish.items() if value}
    counts = remote.client.quarantine({**wanted, "preview": not yes})
    if not counts["records"]:
        raise NothingFoundError(f"{remote.url} has nothing of that token or host")
    content = _describe(counts)
    if yes:
        say(f"{content} quarantined: restore them with  quarantine undo {counts['id']}")
    else:
        say(f"{content} would be quarantined: repeat with --yes")


@quarantine_app.command("list")
def list_quarantines(server: ServerOption = "", as_json: JsonOption = False) -> None:
    """List the quarantines of the namespace, the latest first."""
    quarantines = open_server(server).client.list_quarantines()
    if as_json:
        show_json(quarantines)
        return
    rows = [
        (
            item["id"],
            item["created"],
            item["actor"],
            "  ".join(f"{name}={value}" for name, value in item["wanted"].items()),
            item["parts"],
            item["undone"] or "",
        )
        for item in quarantines
    ]
    show_table(["id", "time", "actor", "of", "parts", "undone"], rows)


@quarantine_app.command("undo")
def undo(identity: Annotated[str, typer.Argument(metavar="ID")], server: ServerOption = "") -> None:
    """Give back to readers what a quarantine took."""
    remote = open_server(server)
    try:
        counts = remote.client.undo_quarantine(identity)
    except RefusedError as error:
        if error.status != 404:
            raise
        raise NothingFoundError(
            f"{remote.url} has no quarantine {identity!r} that could be undone; "
            "`dejavu-cache quarantine list` lists them with their ids"
        ) from None
    say(f"{_describe(counts)} restored")


def _describe(counts: dict[str, Any]) -> str:
    parts = {
        noun: counted(counts[f"{noun}s"], noun)
        for noun in ("measurement", "winner", "record", "context")
    }
    return "{measurement} and {winner} in {record} of {context}".format(**parts)
