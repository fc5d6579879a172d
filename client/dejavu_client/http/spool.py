"""On-disk spool of records that their server has not confirmed yet."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Container, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from filelock import Timeout

from dejavu_cache.model.record import RecordSet
from dejavu_cache.model.scenario import canonical_json
from dejavu_cache.stores.file import hold_lock
from dejavu_cache.system.notices import counted, warn_once
from dejavu_cache.system.safe_files import read_file, replace_file, user_folder

__all__ = ["SetAside", "Spool", "SpooledFile", "all_spools"]

MOST_BYTES = 256 * 2**20
"""Bytes on disk that a spool may take."""

LONGEST_WAIT = 90 * 86400.0
"""Age in seconds from which a record set that cannot be sent is overdue."""

OVERDUE_SECONDS = 7 * 86400.0
"""Seconds after which an overdue record set is deleted, if it still cannot be sent.

A machine that was off for months may reach its server only some time after it has started.
"""

LONGEST_ASIDE = 30 * 86400.0
"""Seconds after which a record set that the server refused is deleted."""

_BLOCK = 4096
"""Bytes that the smallest file takes on disk."""

_LEFTOVER = 3600.0
"""Seconds after which a temporary file's writer has died."""


class SpooledFile(NamedTuple):
    """A file of a spool: its path, its size in bytes on disk, and when it was written."""

    path: Path
    size: int
    written: float


class SetAside(NamedTuple):
    """A record set that is not sent again, and the reason."""

    path: Path
    reason: str


class Spool:
    """Record sets that wait for one namespace of one server, one file each, named by content.

    A file is deleted only after the server has confirmed its records, and sending it twice has the
    same effect as sending it once. A process that dies in between therefore loses and repeats
    nothing. What the server refuses for good lies in `set-aside`, with the reason beside it.

    A spool takes at most `MOST_BYTES`. When it is full, what was set aside is deleted first and
    what has waited longest next, and `sweep` logs it.

    Args:
        server: the server's URL with its namespace; each has a folder of its own.
        root: the folder of all spools; by default in the user's cache folder.
    """

    def __init__(self, server: str, root: Path | None = None) -> None:
        """Name the spool of `server` in `root`; its folder is created with the first record set."""
        self.server = server
        name = hashlib.sha256(server.encode()).hexdigest()[:16]
        self.folder = (root or _default_root()) / name
        self._aside = self.folder / "set-aside"
        self._overdue = self.folder / "overdue"

    def __len__(self) -> int:
        """Return how many record sets wait."""
        return len(self.waiting())

    def waiting(self) -> list[SpooledFile]:
        """Return the files that wait to be sent, the oldest first."""
        return _files(self.folder)

    def set_aside(self) -> list[SetAside]:
        """Return what is not sent again, the oldest first."""
        return [SetAside(file.path, _read_reason(file.path)) for file in _files(self._aside)]

    def add(self, record_set: RecordSet) -> Path | None:
        """Write a record set to disk, as `write` does."""
        return self.write(canonical_json(record_set).encode())

    def write(self, text: bytes) -> Path | None:
        """Write an encoded record set to disk and return its file.

        Returns:
            The file, or None after a warning if the disk cannot be written.
        """
        path = self.folder / f"{_digest(text)}.json"
        try:
            # A process that dies loses nothing; a machine that does may lose the last seconds.
            replace_file(path, text, durable=False)
            name = self.folder / "server.txt"
            if not name.exists():
                replace_file(name, f"{self.server}\n".encode(), durable=False)
        except OSError as error:
            warn_once(
                f"{self.folder}",
                f"records for {self.server} cannot be spooled in {self.folder}: {error}; "
                "they are lost if this process ends before it has sent them",
            )
            return None
        return path

    def read(self, path: Path) -> bytes | None:
        """Return a file's content, or None if another process has sent it meanwhile."""
        try:
            return read_file(path)
        except FileNotFoundError:
            return None

    def remove(self, path: Path) -> None:
        """Delete a file whose records the server has confirmed."""
        with suppress(OSError):
            path.unlink()

    def put_aside(self, text: bytes, reason: str) -> None:
        """Write a record set, or what was found in its place, to where it is not sent again.

        Raises:
            OSError: it cannot be written.
        """
        path = self._aside / f"{_digest(text)}.json"
        try:
            replace_file(path.with_suffix(".reason.txt"), f"{reason}\n".encode(), self.folder)
            replace_file(path, text, self.folder)
        except OSError as error:
            raise OSError(
                error.errno, f"{reason}; and it cannot be set aside: {error.strerror}", str(path)
            ) from None
        warn_once(
            f"aside {self.folder}",
            f"records that {self.server} does not take are set aside in {self._aside}: {reason}",
        )

    @contextmanager
    def exclusive(self, wait: float = 0.0) -> Iterator[bool]:
        """Lock the spool for sending it; False if another process holds the lock.

        Raises:
            OSError: the folder cannot be written, so that what is sent could not be deleted.
        """
        is_ours = True
        with ExitStack() as held:
            try:
                held.enter_context(hold_lock(self.folder / ".lock", wait))
            except Timeout:
                is_ours = False
            except OSError as error:
                raise OSError(
                    error.errno,
                    f"records that are sent cannot be deleted here: {error.strerror}: "
                    "let this user write to the folder",
                    str(self.folder),
                ) from None
            yield is_ours

    def sweep(self, undelivered: Container[Path]) -> None:
        """Delete what is too old, and what is beyond `MOST_BYTES`; log what that loses.

        Nothing is deleted while another process, or another thread, sends the spool.

        Args:
            undelivered: files that a delivery was tried for in vain. No other file that waits is
                too old: it may be dated by a clock that was wrong, and the server may take it.
                Nor are these before a delivery has failed again, `OVERDUE_SECONDS` later.

        Raises:
            OSError: the folder cannot be written.
        """
        if not self.folder.is_dir():
            return
        with self.exclusive() as is_ours:
            if is_ours:
                self._sweep_exclusively(undelivered)

    def _sweep_exclusively(self, undelivered: Container[Path]) -> None:
        now = time.time()
        for path in self.folder.glob("**/*.tmp-*"):
            with suppress(OSError):
                if path.stat().st_mtime < now - _LEFTOVER:
                    path.unlink()
        aside, waiting = _files(self._aside), self.waiting()
        outdated = {file.path for file in aside if file.written < now - LONGEST_ASIDE}
        overdue = [file.path for file in waiting if file.written < now - LONGEST_WAIT]
        outdated |= self._find_hopeless([path for path in overdue if path in undelivered], now)
        excess = sum(file.size for file in (*aside, *waiting)) - MOST_BYTES
        lost = 0
        for file in (*aside, *waiting):
            if excess > 0 or file.path in outdated:
                excess -= file.size
                with suppress(OSError):  # the process that wrote it may have sent it just now
                    file.path.unlink()
                    lost += 1
                self.remove(file.path.with_suffix(".reason.txt"))
        if lost:
            warn_once(
                f"sweep {self.folder}",
                f"{counted(lost, 'record set')} for {self.server} deleted from {self.folder}, "
                f"which keeps {MOST_BYTES >> 20} MiB for {LONGEST_WAIT / 86400:.0f} days: "
                "send them in time with `dejavu-cache sync`",
            )

    def _find_hopeless(self, overdue: Sequence[Path], now: float) -> set[Path]:
        """Return the files that were overdue and undelivered `OVERDUE_SECONDS` ago already.

        A mark for each file notes since when, and goes with it.
        """
        marks = {mark.name: mark for mark in self._overdue.glob("*.json")}
        hopeless = set()
        for path in overdue:
            mark = marks.get(path.name)
            with suppress(OSError):  # a file that cannot be marked stays
                if mark is None:
                    replace_file(self._overdue / path.name, b"", self.folder, durable=False)
                elif mark.stat().st_mtime < now - OVERDUE_SECONDS:
                    hopeless.add(path)
        for mark in marks.values():
            path = self.folder / mark.name
            if path in hopeless or not path.exists():
                self.remove(mark)
        return hopeless


def all_spools(root: Path | None = None) -> list[Spool]:
    """Return this user's spools, also those of servers that nothing uses any more."""
    spools = []
    for name in sorted((root or _default_root()).glob("*/server.txt")):
        with suppress(OSError, UnicodeDecodeError):
            spools.append(Spool(read_file(name).decode().strip(), root))
    return spools


def _default_root() -> Path:
    return user_folder("spool")


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:32]


def _files(folder: Path) -> list[SpooledFile]:
    files = []
    for path in folder.glob("*.json"):
        with suppress(OSError):  # another process has sent it
            status = path.lstat()
            files.append(SpooledFile(path, max(status.st_size, _BLOCK), status.st_mtime))
    return sorted(files, key=lambda file: (file.written, file.path))


def _read_reason(path: Path) -> str:
    try:
        return read_file(path.with_suffix(".reason.txt")).decode(errors="replace").strip()
    except OSError:
        return "unknown"
