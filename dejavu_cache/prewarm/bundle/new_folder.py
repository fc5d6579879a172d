"""Write a folder that appears only once it is complete."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...errors import BundleError

__all__ = ["new_folder"]

_YOUNG = 3600.0
"""Seconds for which a working folder stays without a lock: another machine's may not be seen."""


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Make a working folder, which takes its name at the end, unless an error is raised.

    Working folders that killed processes left for the same name are removed.

    Args:
        out: the folder to write; it may be there if it is empty.

    Raises:
        BundleError: the folder is there already, or cannot be written.
    """
    try:
        out = out.resolve()
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise BundleError(f"{out} is there already: name a new folder, or remove it")
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        reason = getattr(error, "strerror", None) or error
        raise BundleError(f"{out} cannot be written: {reason}") from None
    if out.is_mount():
        raise BundleError(
            f"{out} is a mount point, which cannot be replaced: name a folder in it, as in "
            f"{out / 'now'}"
        )
    work = out.with_name(f".{out.name}.{uuid.uuid4().hex[:8]}")
    try:
        _remove_abandoned(out)
        work.mkdir(parents=True)
        with _hold(work):
            yield work
            if out.exists():
                out.rmdir()
            work.rename(out)
    except OSError as error:
        raise BundleError(f"{out} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def _hold(folder: Path) -> Iterator[None]:
    """Lock a folder as long as this process works on it, where its file system locks folders."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def _remove_abandoned(out: Path) -> None:
    name = re.compile(rf"\.{re.escape(out.name)}\.[0-9a-f]{{8}}")
    for folder in out.parent.iterdir() if out.parent.is_dir() else ():
        if name.fullmatch(folder.name) and _is_abandoned(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return time.time() - os.fstat(handle).st_mtime > _YOUNG
    except OSError:  # its process is at work, or nothing locks folders there
        return False
    finally:
        os.close(handle)
