"""Records on their way to a server: on disk until it has confirmed them, and divided for it.

Nothing here parses a record into its model: the background thread that sends may be interrupted by
the program's end at any point.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from filelock import Timeout

from dejavu_cache.stores.file import hold_lock
from dejavu_cache.system.notices import counted, warn_once
from dejavu_cache.system.safe_files import read_file, replace_file, user_folder

from .errors import RefusedError

__all__ = [
    "REFUSALS_FOR_GOOD",
    "TOO_LARGE",
    "Document",
    "Spool",
    "SpooledFile",
    "all_spools",
    "encode",
    "join",
    "parse_record_set_json",
    "upload",
]

MOST_BYTES = 256 * 2**20
"""Bytes on disk that a spool may take."""

TOO_LARGE = 413
REFUSALS_FOR_GOOD = {400, TOO_LARGE, 422}
"""Statuses that are about the records sent, and not about who sends them or when."""

REQUEST_RECORDS, REQUEST_BYTES = 1000, 2**20
"""Limits of one request: a quarter of what a server takes, which cannot answer while it parses."""

MOST_REFUSALS = 20
"""Records of one record set that are singled out; if there are more, the rest goes in one piece."""

_BLOCK = 4096
"""Bytes that the smallest file takes on disk."""

_LEFTOVER = 3600.0
"""Seconds after which a temporary file's writer has died."""

Document = dict[str, Any]
"""A record set as JSON has it."""


class SpooledFile(NamedTuple):
    """A file of a spool: its path, its size in bytes on disk, and when it was written."""

    path: Path
    size: int
    written: float

    @property
    def reason(self) -> str:
        """Why it is not sent again, if it is set aside."""
        try:
            return read_file(self.path.with_suffix(".reason.txt")).decode(errors="replace").strip()
        except OSError:
            return "unknown"


class Spool:
    """Record sets that wait for one namespace of one server, one file each, named by content.

    A file is deleted only after the server has confirmed its records, and sending it twice has the
    same effect as sending it once. A process that dies in between therefore loses and repeats
    nothing. What the server refuses for good lies in `set-aside`, with the reason beside it.

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
        self.folder = (root or _default_root()) / name
        self._aside = self.folder / "set-aside"

    def __len__(self) -> int:
        """Return how many record sets wait."""
        return len(self.waiting())

    def waiting(self) -> list[SpooledFile]:
        """Return the files that wait to be sent, the oldest first."""
        return _files(self.folder)

    def set_aside(self) -> list[SpooledFile]:
        """Return what is not sent again, the oldest first."""
        return _files(self._aside)

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

    def trim(self) -> None:
        """Delete what is beyond `MOST_BYTES`, and log what that loses."""
        for path in (*_list(self.folder, "*.tmp-*"), *_list(self._aside, "*.tmp-*")):
            with suppress(OSError):
                if path.stat().st_mtime < time.time() - _LEFTOVER:
                    path.unlink()
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
            self.remove(file.path.with_suffix(".reason.txt"))
        if lost:
            warn_once(
                f"trim {self.folder}",
                f"{counted(lost, 'record set')} for {self.server} deleted from {self.folder}, "
                f"which keeps {MOST_BYTES >> 20} MiB: send them in time with `dejavu-cache sync`",
            )


def all_spools(root: Path | None = None) -> list[Spool]:
    """Return this user's spools, also those of servers that nothing uses any more."""
    spools = []
    for folder in sorted(_list(root or _default_root(), "*")):
        with suppress(OSError, UnicodeDecodeError):
            spools.append(Spool(read_file(folder / "server.txt").decode().strip(), root))
    return spools


def _default_root() -> Path:
    return user_folder("spool")


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:32]


def _list(folder: Path, pattern: str) -> list[Path]:
    """Return a folder's files of names like `pattern`; none if it is gone or unreadable."""
    try:  # `Path.glob` raises if another process deletes the folder meanwhile
        return [folder / name for name in fnmatch.filter(os.listdir(folder), pattern)]
    except OSError:
        return []


def _files(folder: Path) -> list[SpooledFile]:
    files = []
    for path in _list(folder, "*.json"):
        with suppress(OSError):  # another process has sent it
            status = path.lstat()
            files.append(SpooledFile(path, max(status.st_size, _BLOCK), status.st_mtime))
    return sorted(files, key=lambda file: (file.written, file.path))


class RefusedPart(NamedTuple):
    """A part of a record set that the server refuses for good, and its answer."""

    part: Document
    error: RefusedError


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


def encode(document: Document) -> bytes:
    """Encode a record set, in ASCII: a damaged one may have halves of characters."""
    return json.dumps(document).encode()


def join(documents: Iterable[Document]) -> list[Document]:
    """Put the records of each context together; the order of a context's records stays."""
    joined: dict[str, Document] = {}
    for document in documents:
        context = json.dumps(document["context"], sort_keys=True)
        before = joined.get(context)
        if before is None:
            joined[context] = {**document, "records": list(document["records"])}
        else:
            before["records"] += document["records"]
            before["format"] = max(before.get("format", 1), document.get("format", 1))
    return list(joined.values())


def upload(
    document: Document,
    send: Callable[[bytes, int], None],
    divide_on: Collection[int] = REFUSALS_FOR_GOOD,
) -> list[RefusedPart]:
    """Send a record set in parts, and return the parts that the server refuses for good.

    A part that is refused with a status in `divide_on` is sent again in halves, down to single
    records, so that the other records of the set arrive. A record that is too large for a request
    is sent in parts of its measurements, which the server merges.

    Args:
        document: the record set.
        send: sends an encoded record set with a number of records.
        divide_on: HTTP statuses.

    Raises:
        RemoteError: the server does not answer, or refuses the sender. Some parts may have
            arrived; to send them again changes nothing.
    """
    refusals: list[RefusedPart] = []
    parts = deque(_split(document))
    while parts:
        part = parts.popleft()
        try:
            send(encode(part), len(part["records"]))
        except RefusedError as error:
            if error.status not in REFUSALS_FOR_GOOD:
                raise
            records = part["records"]
            may_divide = error.status in divide_on and len(refusals) < MOST_REFUSALS
            if len(records) == 1 and error.status == TOO_LARGE:
                records = _divide_record(records[0])
            if len(records) > 1 and may_divide:
                middle = len(records) // 2
                parts.extendleft(
                    {**part, "records": half} for half in (records[middle:], records[:middle])
                )
            else:
                refusals.append(RefusedPart(part, error))
    return refusals


def _divide_record(record: Any) -> list[Any]:
    """Divide a record into two of the same scenario; its winner goes with the second half."""
    measurements = record.get("measurements") or []
    if len(measurements) < 2:
        return [record]
    middle = len(measurements) // 2
    first = {"scenario": record["scenario"], "measurements": measurements[:middle]}
    return [first, {**record, "measurements": measurements[middle:]}]


def _split(document: Document) -> Iterator[Document]:
    """Yield a record set in parts within the limits; a single record is not divided."""
    part: list[Any] = []
    size = 0
    for record in document["records"]:
        length = len(json.dumps(record))
        if part and (len(part) == REQUEST_RECORDS or size + length > REQUEST_BYTES):
            yield {**document, "records": part}
            part, size = [], 0
        part.append(record)
        size += length
    if part:
        yield {**document, "records": part}
