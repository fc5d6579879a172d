"""Open the records that a program will use: shipped ones, and those of the user's store."""

from __future__ import annotations

from ..settings import current_settings
from ..stores import Store, TieredStore, open_store, shipped_stores, tiers_of, wait_longer

__all__ = ["all_records", "own_records"]

PATIENCE = 30.0
"""Seconds that a builder waits for a server; a launch waits for a shorter time."""


def own_records(url: str) -> Store:
    """Open the user's store."""
    return wait_longer(open_store(url), PATIENCE)


def all_records(own: Store) -> Store:
    """Return a store with the records that installed packages ship before the user's."""
    shipped = shipped_stores() if current_settings().shipped else []
    return TieredStore([*shipped, *tiers_of(own)])
