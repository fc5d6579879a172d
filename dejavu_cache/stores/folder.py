"""Read, write and lock files of a store's folder, which others may change at any moment.

Links to the root of a store are followed, links in it are not.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock

from ..errors import DamagedRecordsError, StoreError
from ..system.safe_files import open_folder, read_file, replace_file

__all__ = [
    "Signature",
    "describe_failure",
    "folder_name",
    "hold_lock",
    "read_text",
    "remove_file",
    "signature_of",
    "write_text",
]

_NO_ACCESS = "give this user access, or point DEJAVU_CACHE_URL elsewhere"
_REMEDIES = {
    errno.EACCES: _NO_ACCESS,
    errno.EPERM: _NO_ACCESS,
    errno.EROFS: "add ?read_only=1 to the URL of a file system that is read-only",
    errno.ENOSPC: "make room; what was there before is untouched",
    errno.EDQUOT: "make room; what was there before is untouched",
    errno.EFBIG: "delete records that are not needed; what was there before is untouched",
    errno.ELOOP: "links are not followed: replace it by what it points to",
}

_WITHOUT_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}
"""Answers of file systems that lock no files."""

Signature = tuple[int, int, int]
"""Modification time, size and inode of a file."""


def read_text(path: Path, root: Path) -> str:
    """Return the text of a file.

    Raises:
        FileNotFoundError: there is none.
        DamagedRecordsError: it is not text.
        StoreError: it cannot be read, or is a link, a pipe or a device.
    """
    try:
        return read_file(path, root).decode()
    except UnicodeDecodeError as error:
        raise DamagedRecordsError(f"{path} is damaged: {error}") from None
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(path) from None
    except OSError as error:
        raise describe_failure(error, path, "read") from error


def write_text(path: Path, text: str, root: Path) -> None:
    """Write a file atomically and durably.

    Raises:
        StoreError: the file cannot be written; an earlier one is unchanged.
    """
    try:
        replace_file(path, text.encode(), root)
    except OSError as error:
        raise describe_failure(error, path, "written") from error


def remove_file(path: Path, root: Path) -> bool:
    """Remove a file, and return whether it existed.

    Raises:
        StoreError: it cannot be removed.
    """
    try:
        with open_folder(root, path.parent) as folder:
            os.unlink(path.name, dir_fd=folder)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise describe_failure(error, path, "removed") from error
    return True


@contextmanager
def hold_lock(path: Path, wait: float) -> Iterator[None]:
    """Hold the lock of a path; on a file system without locks, a file stands for it.

    Args:
        path: the lock's file; its folder is created.
        wait: seconds to wait for another holder.

    Raises:
        Timeout: another process still has the lock.
        OSError: the file cannot be created.
    """
    with open_folder(path.parents[1], path.parent, create=True):
        pass  # it is a folder, and no link to one of somebody else
    lock: BaseFileLock = FileLock(path, timeout=wait)
    try:
        lock.acquire()
    except (NotImplementedError, OSError) as error:  # the former is an older filelock's ENOSYS
        if getattr(error, "errno", errno.ENOSYS) not in _WITHOUT_LOCKS:
            raise
        lock = SoftFileLock(path.with_name(f"{path.name}.soft"), timeout=wait)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


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


def signature_of(path: Path) -> Signature:
    """Return what tells a file from its earlier states.

    Raises:
        OSError: there is no such file, or it cannot be looked at.
    """
    stat = path.lstat()
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def folder_name(name: str) -> str:
    """Return a name as a folder's name that people recognise and every file system accepts."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:120] or "_"
