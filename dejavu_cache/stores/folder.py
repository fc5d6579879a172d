"""A store's folder: find, read, write and lock files that others may change at any moment."""

from __future__ import annotations

import errno
import glob
import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from ..errors import DamagedRecordsError, StoreError
from ..system.safe_files import open_folder, open_regular, read_file, replace_file

__all__ = [
    "Folder",
    "Signature",
    "delete_unfinished",
    "describe_failure",
    "folder_name",
    "hold_lock",
    "release_lock",
    "signature_of",
]

LOCKS = ".locks"
"""Name of the folder of locks."""

_WAIT = 30.0
"""Seconds to wait for another writer of the same file; a write takes milliseconds."""

_WAIT_AGAIN = 0.1
"""Seconds to wait for a writer that was waited for in vain, until it has let go."""

_TEMPORARY = re.compile(r"\.tmp-\d+-[0-9a-f]{16}$")
"""End of the name of a file that its writer had not finished; `safe_files` gives such names."""

_ERRORS_WITHOUT_LOCKS = {
    errno.ENOSYS,
    errno.ENOLCK,
    errno.EOPNOTSUPP,
    errno.ENOTSUP,
    errno.EINVAL,
}

_ERRORS_OF_FOREIGN_FILES = {errno.ELOOP, errno.EINVAL, errno.EFBIG, errno.ENXIO}
"""Errors of opening a link, a device, a file that is too large, and a socket."""

_REMEDIES = {
    errno.EACCES: "give this user access, or point DEJAVU_CACHE_URL elsewhere",
    errno.EPERM: "give this user access, or point DEJAVU_CACHE_URL elsewhere",
    errno.EROFS: "the file system is read-only: add ?read_only=1 to its URL, "
    "or point DEJAVU_CACHE_URL elsewhere",
    errno.ENOSPC: "the disk is full: make room; what was there before is untouched",
    errno.EDQUOT: "the quota is used up: make room; what was there before is untouched",
    errno.EFBIG: "delete records that are not needed; what was there before is untouched",
    errno.ENOTDIR: "a file stands where a folder is needed",
    errno.EEXIST: "a file stands where a folder is needed",
    errno.EISDIR: "a folder stands where a file is needed",
    errno.ELOOP: "a symbolic link stands there, and links are not followed: "
    "replace it by what it points to",
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

    def open(self, path: Path) -> IO[bytes]:
        """Open a regular file for reading.

        Raises:
            OSError: it cannot be opened, or is something that no store wrote.
        """
        return open(open_regular(self.root, path), "rb")

    def read(self, path: Path) -> str:
        """Return the text of a file.

        Raises:
            FileNotFoundError: there is none.
            DamagedRecordsError: it is not text, or something that no store wrote: a link, a pipe, …
            StoreError: it cannot be read.
        """
        try:
            content = read_file(path, self.root)
            if b"\0" in content:  # a sparse file of any length costs nothing on the disk
                raise DamagedRecordsError(f"{path} is damaged: it has NUL bytes")
            return content.decode()
        except UnicodeDecodeError as error:
            raise DamagedRecordsError(f"{path} is damaged: {error}") from None
        except FileNotFoundError:
            raise
        except OSError as error:
            if error.errno in _ERRORS_OF_FOREIGN_FILES and error.filename in (path.name, str(path)):
                raise DamagedRecordsError(
                    f"{path} is no file of records: {error.strerror}"
                ) from None
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

    def set_aside(self, path: Path) -> Path | None:
        """Rename a damaged file, and return its new path, or None if it is gone.

        Raises:
            StoreError: it cannot be renamed.
        """
        aside = _aside(path)
        try:
            with open_folder(self.root, path.parent) as folder:
                os.replace(path.name, aside.name, src_dir_fd=folder, dst_dir_fd=folder)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise describe_failure(error, path, "set aside") from error
        return aside

    def keep_beside(self, path: Path, text: str) -> None:
        """Write a part of a damaged file to a file beside it.

        Raises:
            StoreError: it cannot be written.
        """
        self.write(_aside(path), text)

    def find(self, ending: str, *, below: str = "") -> Iterator[tuple[Path, OSError | None]]:
        """Yield the files in order, with None, and the folders that cannot be listed.

        Args:
            ending: how the files' names end. Hidden folders are left out.
            below: the name of a folder to look in; empty: in all.
        """
        errors: list[OSError] = []
        paths: list[tuple[Path, OSError | None]] = []
        for parent, folders, names in os.walk(self.root / below, onerror=errors.append):
            folders[:] = [name for name in folders if not name.startswith(".")]
            paths += [(Path(parent, name), None) for name in names if name.endswith(ending)]
        for error in errors:
            if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
                paths.append((Path(error.filename), error))
        return iter(sorted(paths, key=lambda found: found[0]))

    def lock_path(self, name: str) -> Path:
        """Return the path of a lock."""
        return self.root / LOCKS / name

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
                held.enter_context(hold_lock(self.lock_path(lock), wait))
            except Timeout:
                self._held_up.add(lock)
                raise StoreError(
                    f"{path} is locked by another writer, which was waited for {_WAIT:.0f} s"
                ) from None
            except OSError as error:
                raise describe_failure(error, self.root, "written") from error
            self._held_up.discard(lock)
            yield

    def delete_leftovers(self, age: float) -> int:
        """Delete unfinished files, leases and soft locks of at least an age; return their number.

        Args:
            age: in seconds.
        """
        return sum(_delete_if_old(self.root, path, age) for path in self._leftovers())

    def _leftovers(self) -> Iterator[Path]:
        for parent, _, names in os.walk(self.root):
            holds_locks = Path(parent) == self.root / LOCKS
            for name in names:
                if (holds_locks and name.endswith((".lease", ".soft"))) or _TEMPORARY.search(name):
                    yield Path(parent, name)


@contextmanager
def hold_lock(path: Path, wait: float) -> Iterator[None]:
    """Hold the lock of a path; on a file system without locks, a lock file stands for it.

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
    except (NotImplementedError, OSError) as error:
        code = getattr(error, "errno", errno.ENOSYS)
        if isinstance(error, Timeout) or code not in _ERRORS_WITHOUT_LOCKS:
            raise
        lock = SoftFileLock(path.with_name(f"{path.name}.soft"), timeout=wait)
        lock.acquire()
    try:
        yield
    finally:
        release_lock(lock)


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


def delete_unfinished(file: Path, age: float = 3600.0) -> None:
    """Delete what killed writers of a file left beside it and have not touched for some seconds."""
    for path in file.parent.glob(f"{glob.escape(file.name)}.tmp-*"):
        if _TEMPORARY.search(path.name):
            _delete_if_old(file.parent, path, age)


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


def _aside(path: Path) -> Path:
    return path.with_name(f"{path.name}.damaged-{time.time_ns()}")
