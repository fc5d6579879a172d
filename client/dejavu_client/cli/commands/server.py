"""`log`, `promote` and `quarantine`: what was done on a team's server, and what it takes back."""

from itertools import islice
from typing import Annotated, Any

import typer

from dejavu_cache.errors import SettingsError
from dejavu_cache.system.notices import counted

from ...http.errors import RefusedError
from ..application import app
from ..chosen_store import open_server
from ..errors import NothingFoundError
from ..options import JsonOption, KernelOption, ServerOption, SinceOption, UntilOption
from ..output import say, show_json, show_table
from ..queries import contexts_of, kernel_matches

quarantine_app = typer.Typer(
    no_args_is_help=True, help="What one token or host wrote to a server: list it, take it back."
)
app.add_typer(quarantine_app, name="quarantine")


@app.command()
def log(
    kernel: KernelOption = "",
    actor: Annotated[
        str, typer.Option(metavar="TEXT", help="Only users and tokens whose name contains this.")
    ] = "",
    action: Annotated[
        str, typer.Option(metavar="NAME", help="Only this action, such as pin or delete.")
    ] = "",
    since: SinceOption = "",
    until: UntilOption = "",
    limit: Annotated[
        int, typer.Option(metavar="NUMBER", min=1, help="Entries at most, newest first.")
    ] = 100,
    all_namespaces: Annotated[
        bool, typer.Option("--all", help="Of all namespaces, and of the tokens.")
    ] = False,
    store: ServerOption = "",
    as_json: JsonOption = False,
) -> None:
    """List who pinned, promoted, deleted and quarantined what."""
    filters = {"actor": actor, "action": action, "since": since, "until": until}
    remote = open_server(store)
    logged = remote.client.log_entries(filters, all_namespaces)
    chosen = (entry for entry in logged if kernel_matches(entry["kernel"], kernel))
    entries = list(islice(chosen, limit))
    if kernel and not entries:
        raise NothingFoundError(f"{remote.url} logged no change of {kernel}")
    if as_json:
        show_json(entries)
        return
    for entry in entries:
        entry["what"] = _assignments(entry["detail"])
    rows = _cells(entries, "at", "actor", "action", "namespace", "kernel", "what")
    show_table(["time", "actor", "action", "namespace", "kernel", "what"], rows)


@app.command()
def promote(
    to: Annotated[str, typer.Option(metavar="NAMESPACE", help="The namespace that gets them.")],
    kernel: KernelOption = "",
    writer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="The token that wrote them; may repeat. If others wrote any, nothing is copied.",
        ),
    ] = None,
    store: ServerOption = "",
) -> None:
    """Copy a namespace's records into another.

    Winners go along, and who measured what.
    """
    remote = open_server(store)
    # An error if there is none.
    kernels = sorted({context.kernel.name for context in contexts_of(remote, kernel)})
    source = remote.client.namespace
    for name in kernels if kernel else [None]:
        count = remote.client.promote(to, name, writer or ())
        of = f" of {name}" if name else ""
        say(f"{counted(count, 'record')}{of} promoted from {source} to {to}")


@quarantine_app.command("add")
def add(
    token: Annotated[
        str, typer.Option(metavar="TOKEN", help="A token's id, or the name of tokens.")
    ] = "",
    host: Annotated[str, typer.Option(metavar="HOST", help="A host, or user@host.")] = "",
    since: SinceOption = "",
    until: UntilOption = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do it; else only count.")] = False,
    store: ServerOption = "",
) -> None:
    """Take back what a token or a host wrote to the namespace.

    All readers and copies lose it, until `quarantine undo` gives it back.
    """
    if not token and not host:
        raise SettingsError(
            "quarantine add: name --token or --host; `quarantine list --writers` lists them"
        )
    remote = open_server(store)
    given = {"token": token, "host": host, "since": since, "until": until}
    wanted = {name: value for name, value in given.items() if value}
    counts = remote.client.quarantine({**wanted, "preview": not yes})
    if not counts["records"]:
        raise NothingFoundError(f"{remote.url} has nothing of that token or host")
    content = _describe(counts)
    undoing = f"quarantined: restore them with  dejavu-cache quarantine undo {counts['id']}"
    say(f"{content} {undoing if yes else 'would be quarantined: repeat with --yes'}")


@quarantine_app.command("list")
def list_quarantines(
    writers: Annotated[
        bool, typer.Option("--writers", help="List who wrote measurements instead.")
    ] = False,
    store: ServerOption = "",
    as_json: JsonOption = False,
) -> None:
    """List the namespace's quarantines, the latest first."""
    listed = open_server(store).client.rows("writers" if writers else "quarantines")
    if as_json:
        show_json(listed)
    elif writers:
        rows = _cells(listed, "sender", "by", "measurements", "last")
        show_table(["token", "user and host", "measurements", "last"], rows)
    else:
        for item in listed:
            item["of"] = _assignments(item["request"])
        rows = _cells(listed, "id", "created", "actor", "of", "parts", "undone")
        show_table(["id", "time", "actor", "of", "hidden", "undone"], rows)


@quarantine_app.command("undo")
def undo(
    identity: Annotated[
        str, typer.Argument(metavar="ID", help="Its id, as `quarantine list` shows it.")
    ],
    store: ServerOption = "",
) -> None:
    """Give back to readers what a quarantine took."""
    remote = open_server(store)
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


def _assignments(values: dict[str, Any]) -> str:
    return "  ".join(f"{name}={value}" for name, value in values.items() if value)


def _cells(listed: list[dict[str, Any]], *columns: str) -> list[list[Any]]:
    return [[item[column] for column in columns] for item in listed]


def _describe(counts: dict[str, Any]) -> str:
    parts = {
        noun: counted(counts[f"{noun}s"], noun)
        for noun in ("measurement", "winner", "record", "context")
    }
    return "{measurement} and {winner} in {record} of {context}".format(**parts)
