"""The records that a program will have: what its packages ship, and what it is pointed at."""

from __future__ import annotations

from ..settings import current_settings
from ..stores import Store, TieredStore, open_store, shipped_stores

__all__ = ["all_records", "own_records"]

PATIENCE = 30.0
"""Seconds that a builder waits for a server; a launch waits less."""


def own_records(url: str) -> Store:
    """The store that was named."""
    store = open_store(url)
    for tier in store.tiers if isinstance(store, TieredStore) else (store,):
        if hasattr(tier, "wait"):
            tier.wait = PATIENCE
    return store


def all_records(own: Store) -> Store:
    """The same behind what installed packages ship, as launches have it."""
    shipped = shipped_stores() if current_settings().shipped else []
    return TieredStore([*shipped, *(own.tiers if isinstance(own, TieredStore) else (own,))])
