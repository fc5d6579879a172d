"""Open the records that a program will use: shipped ones, and those of the user's store."""

from __future__ import annotations

from ..settings import current_settings
from ..stores import Store, TieredStore, open_store, shipped_stores

__all__ = ["all_records", "own_records"]

PATIENCE = 30.0
"""Seconds that a builder waits for a server; a launch waits for a shorter time."""


def own_records(url: str) -> Store:
    """Open the user's store."""
    store = open_store(url)
    for tier in store.tiers if isinstance(store, TieredStore) else (store,):
        if hasattr(tier, "wait"):
            tier.wait = PATIENCE
    return store


def all_records(own: Store) -> Store:
    """Return a store with the records that installed packages ship before the user's."""
    shipped = shipped_stores() if current_settings().shipped else []
    return TieredStore([*shipped, *(own.tiers if isinstance(own, TieredStore) else (own,))])
