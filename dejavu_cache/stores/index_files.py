"""Keep indexes of large files of records in the user's cache folder.

A launch without a record of its own asks for the nearest scenario. In a new process, cutting a file
of ten thousand records for that takes some 30 ms, and reading its index less than one. An index
counts for one state of its file; whoever replaces the file writes another one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from ..model.scenario_index import ScenarioIndex
from ..system.safe_files import read_file, replace_file
from ..system.user_folder import user_folder

__all__ = ["WORTHWHILE", "IndexFiles", "Signature"]

WORTHWHILE = 256
"""Least number of records of a file whose index is kept; cutting fewer takes about 1 ms."""

Signature = tuple[int, int, int]
"""Modification time, size and inode of a file."""


class IndexFiles:
    """Indexes of files of records, in memory and in the user's cache folder."""

    def __init__(self) -> None:
        """Begin with nothing in memory."""
        self._indexes: dict[Path, tuple[Signature, ScenarioIndex]] = {}

    def get(self, path: Path, signature: Signature) -> ScenarioIndex | None:
        """Return the index of one state of a file, or None."""
        cached = self._indexes.get(path)
        if cached is not None and cached[0] == signature:
            return cached[1]
        index = _load(path, signature)
        if index is not None:
            self._indexes[path] = signature, index
        return index

    def add(self, path: Path, signature: Signature, texts: Collection[str]) -> ScenarioIndex:
        """Index the scenarios of one state of a file; write that down if it is worthwhile."""
        index = ScenarioIndex(texts)
        self._indexes[path] = signature, index
        if len(texts) >= WORTHWHILE:
            head = json.dumps(_head(path, signature)).encode()
            with suppress(OSError):
                replace_file(_index_path(path), head + b"\n" + index.pack(), mode=0o600)
        return index


def _load(path: Path, signature: Signature) -> ScenarioIndex | None:
    try:
        head, _, packed = read_file(_index_path(path)).partition(b"\n")
        if json.loads(head) != _head(path, signature):
            return None
        return ScenarioIndex.unpack(packed)
    except (OSError, ValueError):
        return None


def _head(path: Path, signature: Signature) -> list[object]:
    return [1, str(path), *signature]


def _index_path(path: Path) -> Path:
    name = hashlib.sha256(str(path).encode()).hexdigest()[:32]
    return user_folder("indexes") / name
