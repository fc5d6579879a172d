"""The store that a process uses unless a kernel names another."""

from __future__ import annotations

import os
from functools import cache

from ..settings import current_settings
from . import FrozenStore, MemoryStore, Store, TieredStore, open_store, shipped_stores

__all__ = ["as_tiers", "default_store"]


@cache
def default_store() -> Store:
    """What `DEJAVU_CACHE_URL` names, else the user's cache directory."""
    settings = current_settings()
    return open_store(settings.url or settings.default_url)


def as_tiers(store: Store | str | os.PathLike[str] | None) -> TieredStore:
    """A store as a launch uses it.

    Records that installed packages ship come before it. Behind it stands this process's memory, so that
    a store that cannot be written costs other processes their reuse, but not this one. A frozen snapshot says
    all there is: shipped records, which an upgrade may change, stay out.
    """
    home = (
        default_store()
        if store is None
        else store
        if isinstance(store, Store)
        else open_store(os.fspath(store))
    )
    tiers = home.tiers if isinstance(home, TieredStore) else (home,)
    frozen = any(isinstance(tier, FrozenStore) for tier in tiers)
    shipped = shipped_stores() if current_settings().shipped and not frozen else []
    return TieredStore([*shipped, *tiers, MemoryStore()])
