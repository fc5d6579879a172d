"""Stores of records: in memory, in files, on servers, and combined."""

from .base import Found, Store
from .file import FileStore
from .tiered import (
    PATIENCE,
    MemoryStore,
    TieredStore,
    current_look,
    make_absolute,
    one_look,
    open_patiently,
    open_store,
    prewarmed_folders,
    shipped_stores,
    tiers_of,
)

__all__ = [
    "PATIENCE",
    "FileStore",
    "Found",
    "MemoryStore",
    "Store",
    "TieredStore",
    "current_look",
    "make_absolute",
    "one_look",
    "open_patiently",
    "open_store",
    "prewarmed_folders",
    "shipped_stores",
    "tiers_of",
]
