"""`push`, `pull`, `sync`, `promote`, `misses`, `pin` and `unpin`: work with a team's server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dejavu_cache.errors import SettingsError, StoreError
from dejavu_cache.model.record import Pin, Record
from dejavu_cache.model.scenario import Config, Context, now
from dejavu_cache.settings import current_settings
from dejavu_cache.stores import Store
from dejavu_cache.system.provenance import whoami

from ..chosen_store import (
    is_server_url,
    open_chosen_store,
    open_complete_store,
    open_existing_store,
    require_records,
    split_urls,
)
from ..completion import complete_namespaces
from ..conditions import parse_conditions_on
from ..copy_recall import recall_copies
from ..errors import PartlyDoneError
from ..kernel_names import matching_kernels
from ..miss_table import parse_misses, select_misses, show_misses
from ..options import (
    DeviceOption,
    JsonOption,
    KernelArgument,
    KernelOption,
    LimitOption,
    ScenarioOption,
    SortOption,
    StoreOption,
    WhereOption,
    parse_assignments,
)
from ..output import say, show_json
from ..record_copy import merge_acknowledged
from ..record_queries import has_settings, kernels_of, matching_records, record_sets_of
from ..spool_summary import send_waiting

if TYPE_CHECKING:
    from ...http.remote_store import RemoteStore

__all__ = ["KernelOption", "ServerOption", "open_server", "register", "worklist"]

ServerOption = Annotated[
    str,
    typer.Option(
        "--server",
        metavar="URL",
        help="The server; else the first https:// or http:// in DEJAVU_CACHE_URL.",
    ),
]

MOST_MISSES = 1000
"""Misses that a server lists at once."""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (push, pull, sync, promote, misses, pin, unpin):
        app.command()(command)


def push(server: ServerOption = "", kernel: KernelOption = "", store: StoreOption = "") -> None:
    """Send a local store's records to the server; prints how many were new there."""
    remote = open_server(server)
    merge_acknowledged(record_sets_of(_open_local(store), kernel), remote)


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
) -> None:
    """Copy a namespace's records into another, winners and provenance included."""
    remote = open_server(server)
    kernels = kernels_of(remote, kernel) if kernel else [None]
    require_records(remote)
    count = sum(remote.client.promote(to, name) for name in kernels)
    say(f"{count} records of {remote.client.namespace} promoted to {to}")


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


def worklist(server: str, kernel: str = "") -> list[dict[str, Any]]:
    """Return a server's misses in the protocol's form, at most `MOST_MISSES` of a kernel.

    Args:
        server: a store's URL, of which the first server counts; empty for the configured server.
        kernel: as for `kernel_matches`.

    Raises:
        NothingFoundError: the kernel has neither records nor misses.
    """
    remote = open_server(_first_server(server))
    rows = remote.client.misses(limit=MOST_MISSES)
    if not kernel:
        return rows
    names = {str(row["context"]["kernel"]["name"]) for row in rows}
    tuned = {context.kernel.name for context in remote.contexts()}
    chosen = matching_kernels(names | tuned, kernel, remote.url)
    if len(rows) == MOST_MISSES:  # other kernels' misses may have left some of these out
        rows = [row for name in chosen for row in remote.client.misses(name, MOST_MISSES)]
        rows.sort(key=lambda row: -int(row["count"]))
    return [row for row in rows if row["context"]["kernel"]["name"] in chosen]


def pin(
    kernel: KernelArgument,
    config: Annotated[
        list[str], typer.Option("--config", metavar="NAME=VALUE", help="Of the config; may repeat.")
    ],
    scenario: ScenarioOption = None,
    store: StoreOption = "",
) -> None:
    """Make scenarios run one config, whatever was measured; it must have been measured for them."""
    values = parse_assignments(config, "--config")
    with open_existing_store(store, write=True) as target:
        pins = []
        for context, record in matching_records(target, kernel, scenario or ()):
            candidates = [
                measured for measured in record.by_config if has_settings(measured, values)
            ]
            if len(candidates) != 1:
                raise SettingsError(
                    f"{record.scenario}: {len(candidates)} measured configs have "
                    f"{', '.join(config)}; name one"
                )
            pins.append((context, record, candidates[0]))
        _set_pins(target, pins)


def unpin(
    kernel: KernelArgument,
    scenario: ScenarioOption = None,
    store: StoreOption = "",
) -> None:
    """Take pins back: the measurements decide again."""
    with open_existing_store(store, write=True) as target:
        matches = matching_records(target, kernel, scenario or ())
        _set_pins(target, [(context, record, None) for context, record in matches if record.pinned])


def _set_pins(store: Store, pins: Sequence[tuple[Context, Record, Config | None]]) -> None:
    """Set or remove pins and print each; an error names how many are done."""
    if not pins:
        say("nothing was pinned")
    for done, (context, record, config) in enumerate(pins):
        choice = Pin(config=config, at=now(), by=whoami())
        try:
            store.put(context, [Record(scenario=record.scenario, pin=choice)])
        except StoreError as error:
            if not done:
                raise
            raise PartlyDoneError(
                f"only {done} of {len(pins)} scenarios are done: {error}"
            ) from None
        state = f"pinned to {config}" if config else "no longer pinned"
        say(f"{context.kernel.name}{record.scenario}: {state}")


def _first_server(urls: str) -> str:
    return next(filter(is_server_url, split_urls(urls)), "")


def open_server(url: str) -> RemoteStore:
    """Open a server, by default the first one of `DEJAVU_CACHE_URL`."""
    url = url or _first_server(current_settings().url)
    if not url:
        raise SettingsError(
            "no server is named: give --server https://…, or name one in DEJAVU_CACHE_URL"
        )
    from ...http.remote_store import RemoteStore  # imports httpx, which other commands do not need

    store = open_chosen_store(url)
    if not isinstance(store, RemoteStore):
        raise SettingsError(f"{url} is no server")
    return store


def _open_local(url: str) -> Store:
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
