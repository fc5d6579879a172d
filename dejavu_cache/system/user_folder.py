"""Folders of this user: for what can be made again or waits to be sent, and for what lasts.

A container's user may have no home, no entry in the user database and no folder to write to. Only
this module asks where the user's folders are.
"""

from __future__ import annotations

import os
import stat
import tempfile
from functools import cache
from pathlib import Path
from typing import Literal

from ..errors import SettingsError
from .notices import warn_once

__all__ = ["NOWHERE", "data_folder", "expand_home", "private_temporary_folder", "user_folder"]

NOWHERE = Path(os.devnull, "dejavu-cache")
"""A folder that is never there and cannot be made: a write to it fails, as on a full disk."""


def user_folder(name: str) -> Path:
    """Return a folder of the package's in the user's cache folder, which need not be there.

    A user who has no such folder gets one among the temporary files, with one warning.

    Args:
        name: what it holds.
    """
    folder = _user_path("cache")
    if folder is None:
        return _fall_back("the home folder is not known") / name
    return (folder if _is_usable(folder) else _fall_back(f"{folder} cannot be used")) / name


def data_folder() -> Path:
    """Return the package's folder in this user's data folder, which need not be there.

    Raises:
        SettingsError: the home folder of this user is not known.
    """
    folder = _user_path("data")
    if folder is None:
        raise SettingsError("the home folder of this user is not known: set HOME or XDG_DATA_HOME")
    return folder


def _user_path(kind: Literal["cache", "data"]) -> Path | None:
    """Return where this user's files of a kind belong, or None if no home is known."""
    from platformdirs import PlatformDirs

    dirs = PlatformDirs("dejavu-cache", appauthor=False)
    try:
        folder = Path(dirs.user_cache_dir if kind == "cache" else dirs.user_data_dir)
    except RuntimeError:  # earlier versions return a path that begins with ~, or is relative
        return None
    return folder if folder.is_absolute() else None


def _is_usable(folder: Path) -> bool:
    """Return whether a folder can be read, or can be made where there is none."""
    nearest = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    needed = os.R_OK if nearest == folder else os.W_OK
    return os.path.isdir(nearest) and os.access(nearest, needed | os.X_OK)


def _fall_back(reason: str) -> Path:
    try:
        folder = private_temporary_folder()
        use = f"{folder} is used until it is cleared"
    except OSError:
        folder, use = NOWHERE, "and there is no temporary one, so that nothing is kept"
    warn_once(
        "user folder",
        f"this user has no cache folder ({reason}): {use}; "
        "set XDG_CACHE_HOME, or DEJAVU_CACHE_URL for the records, to a folder of this user's",
    )
    return folder


@cache
def private_temporary_folder() -> Path:
    """Return a temporary folder that only this user can write to: what is in it may be trusted.

    The user's processes share it, unless somebody else took its name.

    Raises:
        OSError: no folder for temporary files can be written.
    """
    folder = Path(tempfile.gettempdir(), f"dejavu-cache-{os.getuid()}")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        if (
            stat.S_ISDIR(status.st_mode)
            and status.st_uid == os.getuid()
            and not stat.S_IMODE(status.st_mode) & 0o077
        ):
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="dejavu-cache-"))


def expand_home(path: str | os.PathLike[str]) -> Path:
    """Return a path that may begin with a user's home (`~`).

    Raises:
        SettingsError: it does, and the home is not known.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise SettingsError(
            f"{str(path)!r}: the home folder of this user is not known: write the whole path, "
            f"or ./{path} for a folder of that name"
        ) from None
