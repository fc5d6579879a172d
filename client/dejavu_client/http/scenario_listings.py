"""Scenarios of a server's contexts, fetched and refreshed in the background."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from dejavu_cache.model.scenario import Context
from dejavu_cache.system.background_threads import start_thread
from dejavu_cache.system.fork_lock import ForkLock

from .errors import RemoteError
from .protocol_client import ProtocolClient

__all__ = ["REFRESH_SECONDS", "ScenarioListings"]

REFRESH_SECONDS = 30.0
"""Age at which a listing is asked for again, if a launch still has no record."""


class Listing(NamedTuple):
    """The scenarios that a context has, and the entity tag to ask for changes with."""

    etag: str
    texts: list[str]


class ScenarioListings:
    """The scenarios of the contexts in which launches look for neighbours.

    Args:
        client: the connection to the namespace.
        forget: is called with a context whose records have changed.
    """

    def __init__(self, client: ProtocolClient, forget: Callable[[Context], None]) -> None:
        """Begin without listings."""
        self._client = client
        self._forget = forget
        self._lock = ForkLock()
        self._listings: dict[Context, Listing] = {}
        self._threads: dict[Context, threading.Thread | None] = {}
        self._asked_at: dict[Context, float] = {}

    def texts(self, context: Context, wait: float) -> list[str]:
        """Return a context's scenarios; wait for them only if they were never asked for."""
        if context not in self._threads:
            self.refresh(context, wait)
        listing = self._listings.get(context)
        return listing.texts if listing else []

    def revision(self, context: Context) -> str:
        """Return a value that changes with a listing, and refresh an old one."""
        now = time.monotonic()
        if now - self._asked_at.setdefault(context, now) > REFRESH_SECONDS:
            self.refresh(context)
        listing = self._listings.get(context)
        return listing.etag if listing else ""

    def refresh(self, context: Context, wait: float = 0.0) -> None:
        """Fetch a context's scenarios in a thread, and wait up to some seconds for it."""
        with self._lock:
            thread = self._threads.get(context)
            if thread is None or not thread.is_alive():
                self._asked_at[context] = time.monotonic()
                thread = self._threads[context] = start_thread(
                    partial(self._fetch, context), "dejavu-cache listing"
                )
        if thread is not None:
            thread.join(wait)

    def _fetch(self, context: Context) -> None:
        previous = self._listings.get(context)
        try:
            changed = self._client.scenario_texts(context, previous.etag if previous else "")
        except RemoteError:
            return  # a launch does not depend on it, and meets the failure itself
        if changed is not None:
            self._listings[context] = Listing(*changed)
            self._forget(context)
