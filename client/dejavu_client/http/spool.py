"""Records on their way to a server: on disk until it has confirmed them.

Nothing here parses a record into its model: the background thread that sends may be interrupted by
the program's end at any point.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from dejavu_cache.system.notices import counted, warn_once
from dejavu_cache.system.safe_files import read_file, replace_file, user_folder

from .protocol_client import Document

__all__ = ["Spool", "SpooledFile", "all_spools", "parse_record_set_json"]

MOST_BYTES = 256 * 2**20
"""Bytes on disk that a spool may take."""

_BLOCK = 4096
"""Bytes that the smallest file takes on disk."""

_LEFTOVER = 3600.0
"""Seconds after which a temporary file's writer has died."""


class SpooledFile(NamedTuple):
    """A file of a spool: its path, its size in bytes on disk, and when it was written."""

    path: Path
    size: int
    written: float

    @property
    def reason(self) -> str:
        """Why it is not sent again, if it is set aside."""
        try:
            return read_file(self.path).partition(b"\n")[0].decode(errors="replace")
        except OSError:
            return "unknown"


class Spool:
    """Record sets that wait for one namespace of one server, one file each, named by content.

    A file is deleted only after the server has confirmed its records, and sending it twice has the
    same effect as sending it once. A process that dies in between therefore loses and repeats
    nothing. What the server refuses for good lies in `set-aside`, below a line with the reason.

    A spool takes at most `MOST_BYTES`. Beyond that, `trim` deletes what was set aside first, and
    what has waited longest next.

    Files, and not a database: a home folder may be on a network file system, where SQLite can lock
    nothing, and whoever finds a file there can read it.

    Args:
        server: the server's URL with its namespace; each has a folder of its own.
        root: the folder of all spools; by default in the user's cache folder.
    """

    def __init__(self, server: str, root: Path | None = None) -> None:
        """Name the spool of `server` in `root`; its folder is created with the first record set."""
        self.server = server
        name = hashlib.sha256(server.encode()).hexdigest()[:16]
        self.folder = (root or user_folder("spool")) / name
        self.lock = self.folder / ".lock"
        self._aside = self.folder / "set-aside"

    def __len__(self) -> int:
        """Return how many record sets wait."""
        return len(self.waiting())

    def waiting(self) -> list[SpooledFile]:
        """Return the files that wait to be sent, the oldest first."""
        return _files(self.folder, "*.json")

    def set_aside(self) -> list[SpooledFile]:
        """Return what is not sent again, the oldest first."""
        return _files(self._aside, "*.txt")

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

    def remove(self, path: Path) -> None:
        """Delete a file whose records the server has confirmed."""
        with suppress(OSError):
            path.unlink()

    def put_aside(self, text: bytes, reason: str) -> None:
        """Write a record set, or what was found in its place, to where it is not sent again.

        Raises:
            OSError: it cannot be written.
        """
        path = self._aside / f"{_digest(text)}.txt"
        try:
            replace_file(path, reason.encode() + b"\n" + text, self.folder)
        except OSError as error:
            raise OSError(
                error.errno, f"{reason}; and it cannot be set aside: {error.strerror}", str(path)
            ) from None
        warn_once(
            f"aside {self.folder}",
            f"records that {self.server} does not take are set aside in {self._aside}: {reason}",
        )

    def trim(self) -> None:
        """Delete what is beyond `MOST_BYTES`, and log what that loses."""
        now = time.time()
        for file in (*_files(self.folder, "*.tmp-*"), *_files(self._aside, "*.tmp-*")):
            if file.written < now - _LEFTOVER:
                self.remove(file.path)
        files = (*self.set_aside(), *self.waiting())
        excess = sum(file.size for file in files) - MOST_BYTES
        lost = 0
        for file in files:
            if excess <= 0:
                break
            excess -= file.size
            with suppress(OSError):  # another process may have sent it just now
                file.path.unlink()
                lost += 1
        if lost:
            warn_once(
                f"trim {self.folder}",
                f"{counted(lost, 'record set')} for {self.server} deleted from {self.folder}, "
                f"which keeps {MOST_BYTES >> 20} MiB: send them in time with `dejavu-cache sync`",
            )


def all_spools() -> list[Spool]:
    """Return this user's spools, also those of servers that nothing uses any more."""
    root, spools = user_folder("spool"), []
    for folder in sorted(_list(root, "*")):
        with suppress(OSError, UnicodeDecodeError):
            spools.append(Spool(read_file(folder / "server.txt").decode().strip(), root))
    return spools


def parse_record_set_json(text: bytes) -> Document:
    """Parse a record set only as far as sending it needs.

    Raises:
        ValueError: it is no record set.
    """
    try:
        document = json.loads(text)
    except RecursionError as error:
        raise ValueError(str(error)) from None
    if not (
        isinstance(document, dict)
        and isinstance(document.get("context"), dict)
        and isinstance(document.get("records"), list)
        and isinstance(document.get("format", 1), int)
    ):
        raise ValueError("it is no record set")
    return document


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:32]


def _list(folder: Path, pattern: str) -> list[Path]:
    """Return a folder's files of names like `pattern`; none if it is gone or unreadable."""
    try:  # `Path.glob` raises if another process deletes the folder meanwhile
        return [folder / name for name in fnmatch.filter(os.listdir(folder), pattern)]
    except OSError:
        return []


def _files(folder: Path, pattern: str) -> list[SpooledFile]:
    files = []
    for path in _list(folder, pattern):
        with suppress(OSError):  # another process has sent it
            status = path.lstat()
            files.append(SpooledFile(path, max(status.st_size, _BLOCK), status.st_mtime))
    return sorted(files, key=lambda file: (file.written, file.path))
