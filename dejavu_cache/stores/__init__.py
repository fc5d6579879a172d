"""Stores of records: in memory, in files, on servers, and combined."""

from __future__ import annotations

from .base import Found, FoundTree, Store
from .file import FileStore
from .memory import MemoryStore
from .snapshot import FrozenStore
from .tiered import TieredStore
from .urls import local_folders, open_store, shipped_stores

__all__ = [
    "FileStore",
    "Found",
    "FoundTree",
    "FrozenStore",
    "MemoryStore",
    "Store",
    "TieredStore",
    "local_folders",
    "open_store",
    "shipped_stores",
]
