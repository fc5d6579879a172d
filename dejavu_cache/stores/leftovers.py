"""Delete what killed writers left in a store's folder, or beside another file."""

from __future__ import annotations

import glob
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from ..system.safe_files import open_folder
from .file_locks import LOCKS

__all__ = ["delete_leftovers", "delete_unfinished"]

_TEMPORARY = re.compile(r"\.tmp-\d+-[0-9a-f]{16}$")
"""End of the name of a file that its writer had not finished; `safe_files` gives such names."""


def delete_leftovers(root: Path, age: float) -> int:
    """Delete unfinished files, leases and soft locks of at least an age; return their number.

    Args:
        root: the store's folder; links in it are not followed.
        age: in seconds.
    """
    return sum(_delete_if_old(root, path, age) for path in _leftovers(root))


def delete_unfinished(file: Path, age: float = 3600.0) -> None:
    """Delete what killed writers of a file left beside it and have not touched for some seconds."""
    for path in file.parent.glob(f"{glob.escape(file.name)}.tmp-*"):
        if _TEMPORARY.search(path.name):
            _delete_if_old(file.parent, path, age)


def _leftovers(root: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(root):
        holds_locks = Path(parent) == root / LOCKS
        for name in names:
            if (holds_locks and name.endswith((".lease", ".soft"))) or _TEMPORARY.search(name):
                yield Path(parent, name)


def _delete_if_old(root: Path, path: Path, age: float) -> bool:
    try:
        with open_folder(root, path.parent) as folder:
            status = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
            if time.time() - status.st_mtime <= age:
                return False
            os.unlink(path.name, dir_fd=folder)
    except OSError:  # its writer was quicker, or a link is in the way
        return False
    return True
