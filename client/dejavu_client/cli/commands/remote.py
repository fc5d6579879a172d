"""`push`, `pull`, `sync`, `promote` and `misses`: work with a team's server."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Annotated

import typer

from dejavu_cache.settings import current_settings
from dejavu_cache.stores import Store
from dejavu_cache.system.notices import counted

from ..chosen_server import open_server, worklist
from ..chosen_store import (
    is_server_url,
    open_chosen_store,
    open_complete_store,
    require_records,
    split_urls,
)
from ..completion import complete_namespaces
from ..conditions import parse_conditions_on
from ..copy_recall import recall_copies
from ..miss_table import parse_misses, select_misses, show_misses
from ..options import (
    DeviceOption,
    JsonOption,
    KernelOption,
    LimitOption,
    ServerOption,
    SortOption,
    StoreOption,
    WhereOption,
)
from ..output import say, show_json
from ..record_copy import merge_acknowledged
from ..record_queries import kernels_of, record_sets_of
from ..spool_summary import send_waiting
from ..step_report import sum_of_steps

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (push, pull, sync, promote, misses):
        app.command()(command)


def push(server: ServerOption = "", kernel: KernelOption = "", store: StoreOption = "") -> None:
    """Send a local store's records to the server; prints how many were new there."""
    remote = open_server(server)
    with _open_local(store) as local:
        merge_acknowledged(record_sets_of(local, kernel), remote)


def pull(server: ServerOption = "", kernel: KernelOption = "", store: StoreOption = "") -> None:
    """Fetch the server's records into a local store; prints how many were new there."""
    remote, local = open_server(server), _local_target(store)
    merge_acknowledged(record_sets_of(remote, kernel), local)
    recall_copies(local, remote, kernel)


def sync(server: ServerOption = "", kernel: KernelOption = "", store: StoreOption = "") -> None:
    """Send what waits on disk, then push and pull; exits with 1 if something still waits."""
    remote = open_server(server)
    is_all_sent = send_waiting(remote)
    local = _local_target(store)
    recall_copies(local, remote, kernel)  # what was deleted on the server is not sent again
    for source, target in ((local, remote), (remote, local)):
        if next(source.contexts(), None) is not None:
            merge_acknowledged(record_sets_of(source, kernel), target, must_take_all=False)
    if not is_all_sent:
        raise typer.Exit(1)


def promote(
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="NAMESPACE",
            help="The namespace that gets them.",
            autocompletion=complete_namespaces,
        ),
    ],
    server: ServerOption = "",
    kernel: KernelOption = "",
    writer: Annotated[
        list[str] | None,
        typer.Option(help="Name of a token that wrote them; what others wrote is refused."),
    ] = None,
) -> None:
    """Copy a namespace's records into another, winners and provenance included."""
    remote = open_server(server)
    kernels = kernels_of(remote, kernel) if kernel else [None]
    require_records(remote)

    def describe(count: int) -> str:
        return f"{counted(count, 'record')} of {remote.client.namespace} promoted to {to}"

    say(
        describe(
            sum_of_steps(
                kernels, lambda name: remote.client.promote(to, name, writer or ()), describe
            )
        )
    )


def misses(
    server: ServerOption = "",
    kernel: KernelOption = "",
    where: WhereOption = None,
    device: DeviceOption = "",
    sort: SortOption = "",
    limit: LimitOption = 0,
    as_json: JsonOption = False,
) -> None:
    """List what programs wanted and nobody has tuned, the most wanted first.

    Without --limit, the 1000 most wanted.
    """
    listed = parse_misses(worklist(server, kernel))
    conditions = parse_conditions_on(where or (), (miss.scenario for miss in listed))
    chosen = select_misses(listed, conditions, device, sort)
    if as_json:
        show_json([miss.answer for miss in (chosen[:limit] if limit else chosen)])
    elif not chosen:
        say("nothing was missed" if not listed else "nothing that was missed fits")
    else:
        show_misses(chosen, limit)


def _open_local(url: str) -> AbstractContextManager[Store]:
    """Open the local store, which must exist if it was named, for reading all of it."""
    named = url or _configured_local_urls()
    return open_complete_store(named) if named else open_chosen_store(_own_cache())


def _local_target(url: str) -> Store:
    """Open the local store, which may be new."""
    return open_chosen_store(url or _configured_local_urls() or _own_cache())


def _configured_local_urls() -> str:
    """Return the URLs of `DEJAVU_CACHE_URL` that are no servers'."""
    urls = split_urls(current_settings().url)
    return ",".join(url for url in urls if not is_server_url(url))


def _own_cache() -> str:
    return current_settings().default_url
