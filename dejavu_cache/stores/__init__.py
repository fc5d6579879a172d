"""Stores of records: in memory, in files, on servers, and combined."""

from .base import Found, Store
from .file import FileStore
from .tiered import (
    MemoryStore,
    TieredStore,
    make_absolute,
    open_store,
    prewarmed_folders,
    shipped_stores,
    tiers_of,
    wait_longer,
)

__all__ = [
    "FileStore",
    "Found",
    "MemoryStore",
    "Store",
    "TieredStore",
    "make_absolute",
    "open_store",
    "prewarmed_folders",
    "shipped_stores",
    "tiers_of",
    "wait_longer",
]
