"""The folder of this user's files that can be made again, or wait to be sent."""

from __future__ import annotations

from pathlib import Path

__all__ = ["user_folder"]


def user_folder(name: str) -> Path:
    """Return a folder of the package's in the user's cache folder, which need not be there.

    Args:
        name: what it holds.
    """
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("dejavu-cache", appauthor=False)) / name
