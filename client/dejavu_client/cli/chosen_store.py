"""Opening of the stores and servers that commands name, so that a mistyped one is an error."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dejavu_cache.errors import SettingsError, StoreError
from dejavu_cache.settings import current_settings
from dejavu_cache.stores import FileStore, Store, TieredStore, open_patiently, tiers_of

from .output import note
from .queries import matching_kernels

if TYPE_CHECKING:
    from ..http.protocol_client import MissedLaunch
    from ..http.remote_store import RemoteStore


def split_urls(urls: str) -> list[str]:
    """Return the URLs of a comma-separated list, without empty ones."""
    return [url.strip() for url in urls.split(",") if url.strip()]


def is_server_url(url: str) -> bool:
    """Return whether a store's URL is a server's."""
    return url.startswith(("https://", "http://"))


def open_chosen_store(url: str) -> Store:
    """Open a store to write to, which need not exist yet; every tier must accept what is written.

    An empty URL is `DEJAVU_CACHE_URL`, or else the user's own cache.
    """
    store = open_patiently(url)
    return TieredStore(tiers_of(store), strict=True) if isinstance(store, TieredStore) else store


def open_existing_store(url: str, *, write: bool = False) -> Store:
    """Open a store that must exist; every tier must answer when it is asked.

    The user's own cache counts as empty before the first tune. So does a missing folder that
    `DEJAVU_CACHE_URL` lists beside other stores, with a note.

    Args:
        url: as for `open_chosen_store`.
        write: whether the command changes the store; if not, its files are left as they are.

    Raises:
        StoreError: a folder does not exist, or has files and none of them can be read.
    """
    store = open_chosen_store(url)
    folders = [tier for tier in tiers_of(store) if isinstance(tier, FileStore)]
    missing = [folder for folder in folders if not folder.root.is_dir()]
    listed = not url and len(missing) < len(tiers_of(store))
    for folder in missing:
        if listed:
            note(f"{folder.root} does not exist yet, and counts as empty")
        elif url or current_settings().url:
            raise StoreError(_explain_missing(folder.root, named=bool(url)))
    for folder in folders:
        if folder.root.is_dir() and not os.access(folder.root, os.R_OK | os.X_OK):
            raise StoreError(f"{folder.root} cannot be read: give this user access")
        if next(folder.contexts(), None) is None and (problems := _problems_of(folder)):
            raise StoreError(f"{folder.url} has no file that can be read: {problems[0]}")
    if not write:
        for folder in folders:
            folder.read_only = True
    return store


@contextmanager
def open_complete_store(url: str) -> Iterator[Store]:
    """Open a store of which all records can be read, for commands that copy or compare it.

    Raises:
        StoreError: a folder does not exist, or no longer does after the block; or a file or a
            record cannot be read, which the message names.
    """
    store = open_existing_store(url)
    folders = [tier for tier in tiers_of(store) if isinstance(tier, FileStore)]
    present = [folder for folder in folders if folder.root.is_dir()]
    for folder in present:
        if problems := _problems_of(folder):
            listed = "\n".join(f"  {problem}" for problem in problems)
            raise StoreError(
                f"{folder.url} has files that cannot be read, so nothing was copied or compared; "
                f"repair them or move them away:\n{listed}"
            )
    with store:
        yield store
    for folder in present:
        if not folder.root.is_dir():  # its records counted as none from then on
            raise StoreError(f"{folder.root} disappeared while it was read: not all of it was")


def _problems_of(folder: FileStore) -> list[str]:
    return [f"{path}: {text}" for path, found in folder.problems().items() for text in found]


def _explain_missing(folder: Path, *, named: bool) -> str:
    if folder.exists():
        return f"{folder} is a file: a store is a folder or a URL"
    source = "" if named else " (named in DEJAVU_CACHE_URL)"
    return f"there is no store in {folder}{source}: no such folder"


MOST_MISSES = 1000
"""Misses that a server lists at once."""


def open_server(urls: str) -> RemoteStore:
    """Open the first server among some URLs, or else among those of `DEJAVU_CACHE_URL`."""
    servers = filter(is_server_url, split_urls(f"{urls},{current_settings().url}"))
    url = next(servers, "")
    if not url:
        raise SettingsError(
            "no server is named: give --store https://…, or name one in DEJAVU_CACHE_URL"
        )
    from ..http.remote_store import RemoteStore  # imports httpx, which other commands do not need

    store = open_chosen_store(url)
    assert isinstance(store, RemoteStore)
    return store


def worklist(urls: str, kernel: str = "") -> list[MissedLaunch]:
    """Return a server's misses, what is worth most first, at most `MOST_MISSES` of a kernel.

    Raises:
        NothingFoundError: the kernel has neither records nor misses.
    """
    remote = open_server(urls)
    misses = remote.client.misses(limit=MOST_MISSES)
    if not kernel:
        return misses
    names = {miss.context.kernel.name for miss in misses}
    tuned = {context.kernel.name for context in remote.contexts()}
    chosen = matching_kernels(names | tuned, kernel, remote.url)
    if len(misses) == MOST_MISSES:  # other kernels' misses may have left some of these out
        misses = [miss for name in chosen for miss in remote.client.misses(name, MOST_MISSES)]
        misses.sort(key=lambda miss: miss.worth.order)
    return [miss for miss in misses if miss.context.kernel.name in chosen]
