"""Open the server that a command works with, and read its worklist."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dejavu_cache.errors import SettingsError
from dejavu_cache.settings import current_settings

from .chosen_store import is_server_url, open_chosen_store, split_urls
from .kernel_names import matching_kernels

if TYPE_CHECKING:
    from ..http.remote_store import RemoteStore

__all__ = ["open_server", "worklist"]

MOST_MISSES = 1000
"""Misses that a server lists at once."""


def _first_server(urls: str) -> str:
    return next(filter(is_server_url, split_urls(urls)), "")


def open_server(url: str) -> RemoteStore:
    """Open a server, by default the first one of `DEJAVU_CACHE_URL`."""
    url = url or _first_server(current_settings().url)
    if not url:
        raise SettingsError(
            "no server is named: give --server https://…, or name one in DEJAVU_CACHE_URL"
        )
    from ..http.remote_store import RemoteStore  # imports httpx, which other commands do not need

    store = open_chosen_store(url)
    if not isinstance(store, RemoteStore):
        raise SettingsError(f"{url} is no server")
    return store


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
