"""Locks of the files in a store's folder, also on file systems that lack locks."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from ..errors import StoreError
from ..system.safe_files import open_folder
from .page_cache import describe_failure

__all__ = ["LOCKS", "FileLocks", "acquire_lock", "release_lock"]

LOCKS = ".locks"
"""Name of the folder of locks."""

_WAIT = 30.0
"""Seconds to wait for another writer of the same file; a write takes milliseconds."""

_WAIT_AGAIN = 0.1
"""Seconds to wait for a writer that was waited for in vain, until it has let go."""

_ERRORS_WITHOUT_LOCKS = {
    errno.ENOSYS,
    errno.ENOLCK,
    errno.EOPNOTSUPP,
    errno.ENOTSUP,
    errno.EINVAL,
}


class FileLocks:
    """The locks of a store's folder."""

    def __init__(self, root: Path) -> None:
        """Lock files of the folder `root`, which need not exist."""
        self._root = root
        self._held_up: set[str] = set()

    def path(self, name: str) -> Path:
        """Return the path of a lock."""
        return self._root / LOCKS / name

    @contextmanager
    def write(self, path: Path, name: str) -> Iterator[None]:
        """Hold the lock of a file that is to be written.

        A process waits once for a writer that is stuck, and not at each of its writes.

        Raises:
            StoreError: another writer keeps the lock, or it cannot be made.
        """
        wait = _WAIT_AGAIN if name in self._held_up else _WAIT
        try:
            lock = acquire_lock(self.path(name), wait)
        except Timeout:
            self._held_up.add(name)
            raise StoreError(
                f"{path} is locked by another writer, which was waited for {_WAIT:.0f} s"
            ) from None
        except OSError as error:
            raise describe_failure(error, self._root, "written") from error
        self._held_up.discard(name)
        try:
            yield
        finally:
            release_lock(lock)


def acquire_lock(path: Path, wait: float) -> BaseFileLock:
    """Acquire the lock of a path; on a file system without locks, create a lock file instead.

    Args:
        path: the lock's file; its folder is created.
        wait: seconds to wait for another holder.

    Raises:
        Timeout: another process still has the lock.
        OSError: the file cannot be created.
    """
    with open_folder(path.parents[1], path.parent, create=True):
        pass  # it is a folder, and no link to one of somebody else
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


def release_lock(lock: BaseFileLock) -> None:
    """Release a lock, also where its file system fails to unlock the file.

    A network file system whose server was away may fail to. What was written under the lock is
    written all the same, and closing the file ends the lock as well; a file that stayed open would
    keep all other writers waiting until this process ends.
    """
    context = lock._context
    descriptor = context.lock_file_fd  # before: filelock 3 forgets it, and 4 keeps it
    try:
        lock.release()
    except OSError:
        context.lock_file_fd = None
        if descriptor is not None:
            with suppress(OSError):
                os.close(descriptor)
        lock.release()
