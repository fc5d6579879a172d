"""`push`, `pull`, `sync`, `promote`, `misses`, `pin` and `unpin`: work with a team's server."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dejavu_cache.errors import SettingsError
from dejavu_cache.model.record import Pin, Record
from dejavu_cache.model.scenario import Config, Context, Scalar, now
from dejavu_cache.provenance import whoami
from dejavu_cache.settings import current_settings
from dejavu_cache.stores import Store, open_store

from ..options import (
    JsonOption,
    KernelArgument,
    ScenarioOption,
    StoreOption,
    is_server_url,
    open_chosen_store,
    parse_assignments,
    split_urls,
)
from ..output import say, show_json, show_table
from ..record_queries import matching_records
from ..spool_summary import send_waiting

if TYPE_CHECKING:
    from ...http.remote_store import RemoteStore

__all__ = ["register", "worklist"]

ServerOption = Annotated[
    str,
    typer.Option(
        "--server",
        metavar="URL",
        help="The server; else the first https:// or http:// in DEJAVU_CACHE_URL.",
    ),
]
KernelOption = Annotated[str, typer.Option("--kernel", help="Only this kernel.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (push, pull, sync, promote, misses, pin, unpin):
        app.command()(command)


def push(server: ServerOption = "", kernel: KernelOption = "", store: StoreOption = "") -> None:
    """Send a local store's records to the server."""
    _send(_open_local(store), _open_server(server), kernel)


def pull(server: ServerOption = "", kernel: KernelOption = "", store: StoreOption = "") -> None:
    """Fetch the server's records into a local store."""
    _copy(_open_server(server), _open_local(store), kernel)


def sync(server: ServerOption = "", kernel: KernelOption = "", store: StoreOption = "") -> None:
    """Send what waits on disk, then push and pull; exits with 1 if something still waits."""
    remote = _open_server(server)
    is_all_sent = send_waiting(remote)
    local = _open_local(store)
    _send(local, remote, kernel)
    _copy(remote, local, kernel)
    if not is_all_sent:
        raise typer.Exit(1)


def promote(
    to: Annotated[
        str, typer.Option("--to", metavar="NAMESPACE", help="The namespace that gets them.")
    ],
    server: ServerOption = "",
    kernel: KernelOption = "",
) -> None:
    """Copy a namespace's records into another, winners and provenance included."""
    client = _open_server(server).client
    count = client.promote(to, kernel or None)
    say(f"{count} records of {client.namespace} promoted to {to}")


def misses(
    server: ServerOption = "", kernel: KernelOption = "", as_json: JsonOption = False
) -> None:
    """List what programs wanted and nobody has tuned, the most wanted first."""
    rows = worklist(server, kernel)
    if as_json:
        show_json(rows)
        return
    cells = [
        (
            row["count"],
            row["context"]["kernel"]["name"],
            row["context"]["environment"]["device"]["name"],
            row["scenario"],
        )
        for row in rows
    ]
    show_table(["count", "kernel", "device", "scenario"], cells)


def worklist(server: str, kernel: str = "") -> list[dict[str, Any]]:
    """Return a server's misses in the protocol's form.

    Args:
        server: a store's URL, of which the first server counts; empty for the configured server.
        kernel: the kernel's full name; empty for all kernels.
    """
    return _open_server(_first_server(server)).client.misses(kernel or None)


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
    with open_chosen_store(store) as target:
        for context, record in _require_records(target, kernel, scenario):
            candidates = [measured for measured in record.by_config if _has(measured, values)]
            if len(candidates) != 1:
                raise SettingsError(
                    f"{record.scenario}: {len(candidates)} measured configs have "
                    f"{', '.join(config)}; name one"
                )
            _set_pin(target, context, record, candidates[0])


def unpin(
    kernel: KernelArgument,
    scenario: ScenarioOption = None,
    store: StoreOption = "",
) -> None:
    """Take pins back: the measurements decide again."""
    with open_chosen_store(store) as target:
        for context, record in _require_records(target, kernel, scenario):
            if record.pinned:
                _set_pin(target, context, record, None)


def _set_pin(store: Store, context: Context, record: Record, config: Config | None) -> None:
    choice = Pin(config=config, at=now(), by=whoami())
    store.put(context, [Record(scenario=record.scenario, pin=choice)])
    state = f"pinned to {config}" if config else "no longer pinned"
    say(f"{context.kernel.name}{record.scenario}: {state}")


def _require_records(
    store: Store, kernel: str, assignments: Iterable[str] | None
) -> list[tuple[Context, Record]]:
    matches = matching_records(store, kernel, assignments)
    if not matches:
        say(f"{store.url} has no such record of {kernel}")
        raise typer.Exit(1)
    return matches


def _has(config: Config, values: dict[str, str]) -> bool:
    settings: dict[str, Scalar] = {**config.params, **config.options}
    return all(name in settings and str(settings[name]) == value for name, value in values.items())


def _send(source: Store, remote: RemoteStore, kernel: str) -> None:
    """Send records in the foreground, so that the command sees a failure."""
    count = 0
    for record_set in source.record_sets(kernel or None):
        remote.client.send(record_set)
        count += len(record_set.records)
    say(f"{count} records sent to {remote.url}")


def _copy(source: Store, target: Store, kernel: str) -> None:
    count = 0
    for record_set in source.record_sets(kernel or None):
        target.put(record_set.context, record_set.records)
        count += len(record_set.records)
    say(f"{count} records fetched into {target.url}")


def _first_server(urls: str) -> str:
    return next(filter(is_server_url, split_urls(urls)), "")


def _open_server(url: str) -> RemoteStore:
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
    settings = current_settings()
    local_urls = [part for part in split_urls(settings.url) if not is_server_url(part)]
    return open_store(url or ",".join(local_urls) or settings.default_url)
