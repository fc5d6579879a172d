"""Lock, write and report on files for `stores.file`, also on file systems that lack locks."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from ..errors import StoreError

__all__ = ["acquire_lock", "describe_failure", "replace_file"]

_ERRORS_WITHOUT_LOCKS = {
    errno.ENOSYS,
    errno.ENOLCK,
    errno.EOPNOTSUPP,
    errno.ENOTSUP,
    errno.EINVAL,
}

_REMEDIES = {
    errno.EACCES: "give this user access, or point DEJAVU_CACHE_URL elsewhere",
    errno.EPERM: "give this user access, or point DEJAVU_CACHE_URL elsewhere",
    errno.EROFS: "the file system is read-only: add ?read_only=1 to its URL, "
    "or point DEJAVU_CACHE_URL elsewhere",
    errno.ENOSPC: "the disk is full: make room; what was there before is untouched",
    errno.EDQUOT: "the quota is used up: make room; what was there before is untouched",
    errno.ENOTDIR: "a file stands where a folder is needed",
    errno.EISDIR: "a folder stands where a file is needed",
}


def acquire_lock(path: Path, wait: float) -> BaseFileLock:
    """Acquire the lock of a path; on a file system without locks, create a lock file instead.

    Args:
        path: the lock's file; its folder is created.
        wait: seconds to wait for another holder.

    Raises:
        Timeout: another process still has the lock.
        OSError: the file cannot be created.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        lock: BaseFileLock = FileLock(path, timeout=wait)
        lock.acquire()
    except (NotImplementedError, OSError) as error:
        code = getattr(error, "errno", errno.ENOSYS)
        if isinstance(error, Timeout) or code not in _ERRORS_WITHOUT_LOCKS:
            raise
        lock = SoftFileLock(path.with_name(f"{path.name}.soft"), timeout=wait)
        lock.acquire()
    return lock


def replace_file(path: Path, text: str) -> None:
    """Write a file atomically and durably, by a temporary file that is synced and renamed.

    Raises:
        StoreError: the file cannot be written; an earlier one is unchanged.
    """
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}-{threading.get_ident()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise describe_failure(error, path, "written") from error


def describe_failure(error: OSError, path: Path, action: str) -> StoreError:
    """Return a store's error for a failed access, with a remedy where one is known.

    Args:
        error: the operating system's error.
        path: the file or folder.
        action: a participle that completes "PATH cannot be ...", such as "read".
    """
    remedy = _REMEDIES.get(error.errno or 0, "")
    return StoreError(
        f"{path} cannot be {action}: {error.strerror or error}{'; ' + remedy if remedy else ''}"
    )


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
