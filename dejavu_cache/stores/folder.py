"""A store's folder: find, read, write and lock files that others may change at any moment."""

from __future__ import annotations

import errno
import fnmatch
import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from ..errors import DamagedRecordsError, StoreError
from ..system.safe_files import open_folder, read_file, replace_file

__all__ = [
    "Folder",
    "Signature",
    "describe_failure",
    "folder_name",
    "hold_lock",
    "signature_of",
]

LOCKS = ".locks"
"""Name of the folder of locks."""

_WAIT = 30.0
"""Seconds to wait for another writer of the same file; a write takes milliseconds."""

_WAIT_AGAIN = 0.1
"""Seconds to wait for a writer that was waited for in vain, until it has let go."""

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

Signature = tuple[int, int, int]
"""Modification time, size and inode of a file."""


class Folder:
    """Files below a root; links to the root are followed, links in it are not.

    Args:
        root: the folder, which need not exist; the first write creates it.
    """

    def __init__(self, root: Path) -> None:
        """Touch nothing yet."""
        self.root = root
        self._held_up: set[str] = set()

    def read(self, path: Path) -> str:
        """Return the text of a file.

        Raises:
            FileNotFoundError: there is none.
            DamagedRecordsError: it is not text.
            StoreError: it cannot be read, or is a link, a pipe or a device.
        """
        try:
            return read_file(path, self.root).decode()
        except UnicodeDecodeError as error:
            raise DamagedRecordsError(f"{path} is damaged: {error}") from None
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(path) from None
        except OSError as error:
            raise describe_failure(error, path, "read") from error

    def write(self, path: Path, text: str) -> None:
        """Write a file atomically and durably.

        Raises:
            StoreError: the file cannot be written; an earlier one is unchanged.
        """
        try:
            replace_file(path, text.encode(), self.root)
        except OSError as error:
            raise describe_failure(error, path, "written") from error

    def remove(self, path: Path) -> bool:
        """Remove a file, and return whether it existed.

        Raises:
            StoreError: it cannot be removed.
        """
        try:
            with open_folder(self.root, path.parent) as folder:
                os.unlink(path.name, dir_fd=folder)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise describe_failure(error, path, "removed") from error
        return True

    def keep_damaged(self, path: Path) -> Path:
        """Copy a damaged file under a name that says so, and return that.

        Raises:
            StoreError: it cannot be copied.
        """
        copy = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
        try:
            replace_file(copy, read_file(path, self.root), self.root)
        except OSError as error:
            raise describe_failure(error, copy, "written") from error
        return copy

    def find(self, pattern: str, *, below: str = "") -> Iterator[Path]:
        """Yield the files whose names match a pattern, in order; hidden folders are left out.

        Args:
            pattern: as in a shell.
            below: the name of a folder to look in; empty: in all.

        Raises:
            StoreError: a folder cannot be listed.
        """
        paths: list[Path] = []
        for parent, folders, names in os.walk(self.root / below, onerror=_refuse_unlisted):
            folders[:] = [name for name in folders if not name.startswith(".")]
            paths += [Path(parent, name) for name in fnmatch.filter(names, pattern)]
        return iter(sorted(paths))

    @contextmanager
    def writing(self, path: Path, lock: str) -> Iterator[None]:
        """Hold the lock of a file that is to be written.

        A process waits once for a writer that is stuck, and not at each of its writes.

        Args:
            path: the file.
            lock: the name of its lock.

        Raises:
            StoreError: another writer keeps the lock, or it cannot be made.
        """
        with ExitStack() as held:
            try:
                wait = _WAIT_AGAIN if lock in self._held_up else _WAIT
                held.enter_context(hold_lock(self.root / LOCKS / lock, wait))
            except Timeout:
                self._held_up.add(lock)
                raise StoreError(
                    f"{path} is locked by another writer, which was waited for {_WAIT:.0f} s"
                ) from None
            except OSError as error:
                raise describe_failure(error, self.root, "written") from error
            self._held_up.discard(lock)
            yield


@contextmanager
def hold_lock(path: Path, wait: float) -> Iterator[None]:
    """Hold the lock of a path; on a file system without locks, a file of filelock stands for it.

    Args:
        path: the lock's file; its folder is created.
        wait: seconds to wait for another holder.

    Raises:
        Timeout: another process still has the lock.
        OSError: the file cannot be created, or not be locked.
    """
    with open_folder(path.parents[1], path.parent, create=True):
        pass  # it is a folder, and no link to one of somebody else
    with FileLock(path, timeout=wait):
        yield


def _refuse_unlisted(error: OSError) -> None:
    """Raise for a folder that cannot be listed, unless it has just gone."""
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        raise describe_failure(error, Path(error.filename), "read") from error


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
