"""`push`, `pull`, `sync`, `promote`, `misses`, `pin` and `unpin`: between people and a team's server."""

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

from ..output import JsonOption, StoreOption, open_chosen_store, say, show_json, show_table
from .listing import assignments, matching

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
KernelArgument = Annotated[
    str, typer.Argument(help="The kernel's module and qualified name, or the end of it.")
]
ScenarioOption = Annotated[
    list[str],
    typer.Option(
        "--scenario", metavar="NAME=VALUE", help="Only scenarios with this value; may repeat."
    ),
]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    for command in (push, pull, sync, promote, misses, pin, unpin):
        app.command()(command)


def push(server: ServerOption = "", kernel: KernelOption = "", store: StoreOption = "") -> None:
    """Send a local store's records to the server."""
    _send(_local(store), _server(server), kernel)


def pull(server: ServerOption = "", kernel: KernelOption = "", store: StoreOption = "") -> None:
    """Fetch the server's records into a local store."""
    _copy(_server(server), _local(store), kernel)


def sync(server: ServerOption = "", kernel: KernelOption = "", store: StoreOption = "") -> None:
    """Send what waits on disk, then push and pull."""
    remote = _server(server)
    say(f"{remote.sender.drain()} record sets that waited were sent")
    local = _local(store)
    _send(local, remote, kernel)
    _copy(remote, local, kernel)


def promote(
    to: Annotated[
        str, typer.Option("--to", metavar="NAMESPACE", help="The namespace that gets them.")
    ],
    server: ServerOption = "",
    kernel: KernelOption = "",
) -> None:
    """Copy a namespace's records into another, winners and provenance included."""
    remote = _server(server)
    say(
        f"{remote.client.promote(to, kernel or None)} records of {remote.client.namespace} promoted to {to}"
    )


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
    """A server's misses, as it tells them; `server` may name the tiers before it too."""
    parts = [part.strip() for part in server.split(",")]
    remote = next((part for part in parts if part.startswith(("https://", "http://"))), "")
    return _server(remote).client.misses(kernel or None)


def pin(
    kernel: KernelArgument,
    config: Annotated[
        list[str], typer.Option("--config", metavar="NAME=VALUE", help="Of the config; may repeat.")
    ],
    where: ScenarioOption = [],
    store: StoreOption = "",
) -> None:
    """Make scenarios run one config, whatever was measured; it must have been measured for them."""
    wanted = assignments(config, "--config")
    with open_chosen_store(store) as held:
        for context, record in _matching(held, kernel, where):
            chosen = [each for each in record.by_config if _has(each, wanted)]
            if len(chosen) != 1:
                raise SettingsError(
                    f"{record.scenario}: {len(chosen)} measured configs have {', '.join(config)}; name one"
                )
            _set_pin(held, context, record, chosen[0])


def unpin(
    kernel: KernelArgument,
    where: ScenarioOption = [],
    store: StoreOption = "",
) -> None:
    """Take pins back: the measurements decide again."""
    with open_chosen_store(store) as held:
        for context, record in _matching(held, kernel, where):
            if record.pinned:
                _set_pin(held, context, record, None)


def _set_pin(store: Store, context: Context, record: Record, config: Config | None) -> None:
    choice = Pin(config=config, at=now(), by=whoami())
    store.put(context, [Record(scenario=record.scenario, pin=choice)])
    say(
        f"{context.kernel.name}{record.scenario}: {f'pinned to {config}' if config else 'no longer pinned'}"
    )


def _matching(store: Store, kernel: str, where: Iterable[str]) -> list[tuple[Context, Record]]:
    found = matching(store, kernel, where)
    if not found:
        say(f"{store.url} has no such record of {kernel}")
        raise typer.Exit(1)
    return found


def _has(config: Config, wanted: dict[str, str]) -> bool:
    values: dict[str, Scalar] = {**config.params, **config.options}
    return all(name in values and str(values[name]) == value for name, value in wanted.items())


def _send(source: Store, remote: RemoteStore, kernel: str) -> None:
    """Straight over the client, so that a failure is seen here and not left to the background."""
    count = 0
    for whole in source.record_sets(kernel or None):
        remote.client.send(whole)
        count += len(whole.records)
    say(f"{count} records sent to {remote.url}")


def _copy(source: Store, target: Store, kernel: str) -> None:
    count = 0
    for whole in source.record_sets(kernel or None):
        target.put(whole.context, whole.records)
        count += len(whole.records)
    say(f"{count} records fetched into {target.url}")


def _server(url: str) -> RemoteStore:
    named = [part.strip() for part in current_settings().url.split(",")]
    url = url or next((part for part in named if part.startswith(("https://", "http://"))), "")
    if not url:
        raise SettingsError(
            "no server is named: give --server https://…, or name one in DEJAVU_CACHE_URL"
        )
    from ...http.remote_store import (
        RemoteStore,
    )  # brings httpx, which the other commands can do without

    store = open_chosen_store(url)
    if not isinstance(store, RemoteStore):
        raise SettingsError(f"{url} is no server")
    return store


def _local(url: str) -> Store:
    settings = current_settings()
    named = [part.strip() for part in settings.url.split(",") if part.strip()]
    local = [part for part in named if not part.startswith(("https://", "http://"))]
    return open_store(url or ",".join(local) or settings.default_url)
