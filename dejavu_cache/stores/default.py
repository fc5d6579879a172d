"""The store that a process uses unless a kernel names another."""

from __future__ import annotations

import os
from functools import cache

from ..settings import current_settings
from ..system.user_folder import expand_home
from . import FrozenStore, MemoryStore, Store, TieredStore, open_store, shipped_stores, tiers_of

__all__ = ["as_tiers", "default_store"]


@cache
def default_store() -> Store:
    """Return the store of `DEJAVU_CACHE_URL`, or of the user's cache directory if that is unset."""
    settings = current_settings()
    return open_store(settings.url or settings.default_url)


def as_tiers(store: Store | str | os.PathLike[str] | None) -> TieredStore:
    """Return the tiers that a launch reads: shipped records, a store and this process's memory.

    With the memory as the last tier, a process can reuse its own results even if the store cannot
    be written. Shipped records are left out before a frozen snapshot, because an upgrade of the
    package that ships them would change the results.

    Args:
        store: the store or its URL; None stands for the default store.
    """
    if store is None:
        home = default_store()
    else:
        home = store if isinstance(store, Store) else open_store(_url_of(store))
    tiers = tiers_of(home)
    frozen = any(isinstance(tier, FrozenStore) for tier in tiers)
    shipped = shipped_stores() if current_settings().shipped and not frozen else []
    return TieredStore([*shipped, *tiers, MemoryStore()])


def _url_of(store: str | os.PathLike[str]) -> str:
    """Return a store's URL; a path may have characters, such as commas, that mean more in a URL."""
    return store if isinstance(store, str) else expand_home(store).absolute().as_uri()
