"""Records on their way to a server: on disk until it has confirmed them, sent by a thread.

The thread handles encoded records only. It never parses one into its model, which would be unsafe
at the program's end: see `dejavu_cache.system.background_threads`.
"""

import fnmatch
import hashlib
import json
import math
import os
import time
import weakref
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from filelock import Timeout

from dejavu_cache.model.record import Record, RecordSet
from dejavu_cache.model.scenario import Context, Scenario, canonical_json
from dejavu_cache.model.worth import MissCount
from dejavu_cache.stores import current_look
from dejavu_cache.stores.file import hold_lock
from dejavu_cache.system import background_threads
from dejavu_cache.system.fork_lock import ForkCondition
from dejavu_cache.system.notices import counted, warn_once
from dejavu_cache.system.safe_files import read_file, replace_file, user_folder

from .circuit import ServerCalls
from .errors import RefusedError, RemoteError, ServerFaultError
from .protocol_client import Document, ProtocolClient, encode

IDLE = 5.0
"""Seconds between checks of the spool while the queue is empty."""

BATCH_FILES = 100
"""Most files that are read at once and sent together."""

PAUSE = 60.0
"""Seconds until records are sent again after the server refused the sender or failed on them."""

TRIM_EVERY = 600.0
"""Seconds between two looks at the size of the spool."""

MOST_BYTES = 256 * 2**20
"""Bytes on disk that a spool may take."""

_BLOCK = 4096
"""Bytes that the smallest file takes on disk."""


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
        except OSError as error:
            warn_once(
                f"{self.folder}",
                f"records for {self.server} cannot be spooled in {self.folder}: {error}; "
                "they are lost if this process ends before it has sent them",
            )
            return None
        return path

    def put_aside(self, text: bytes, reason: str) -> None:
        """Write a record set, or what was found in its place, to where it is not sent again.

        Raises:
            OSError: it cannot be written.
        """
        path = self._aside / f"{_digest(text)}.txt"
        try:
            replace_file(path, reason.encode() + b"\n" + text, self.folder)
        except OSError as error:
            message = f"{reason}; and it cannot be set aside: {error.strerror}"
            raise OSError(error.errno, message, str(path)) from None
        warn_once(
            f"aside {self.folder}",
            f"records that {self.server} does not take are set aside in {self._aside}: {reason}",
        )

    def trim(self) -> None:
        """Delete what is beyond `MOST_BYTES`, and log what that loses."""
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


class Sender(background_threads.Finisher):
    """Queue of records, misses and lease releases, and the thread that sends them in order.

    `put` writes records to the spool before it returns, and the thread deletes them there once the
    server has confirmed them: however the process ends, they are not lost. It asks a server that is
    away again and again, and then sends what waits, also what other processes left.

    Attributes:
        sent: how many record sets the server confirmed altogether.
    """

    def __init__(self, calls: ServerCalls, spool: Spool) -> None:
        """Set up an empty queue; the thread starts with the first `wake`."""
        self._calls = calls
        self._spool = spool
        self._reset()
        background_threads.at_program_end(self)
        _senders.add(self)

    def _reset(self) -> None:
        """Clear all state; after a fork the parent still sends what was queued."""
        self._condition = ForkCondition()
        self._queue: dict[Path | bytes, Context] = {}
        """Files of this process in the spool, or encoded record sets where the disk is full.

        What could not be sent stays, and no lease is released before it is.
        """
        self._misses: dict[tuple[Context, Scenario], MissCount] = {}
        self._leases: list[str] = []
        self._has_thread = self._is_woken = self._is_busy = self._is_stopping = False
        self._refused_until = self._next_drain = self._next_trim = 0.0
        self.sent = 0

    def put(self, context: Context, records: Iterable[Record]) -> None:
        """Spool records, queue them, and return."""
        with background_threads.uninterrupted():  # a daemon thread of the program may put records
            text = canonical_json(RecordSet(context=context, records=tuple(records))).encode()
        item = self._spool.write(text) or text
        with self._condition:
            self._queue[item] = context
        self.wake()

    def miss(self, context: Context, scenario: Scenario, missed: MissCount) -> None:
        """Queue launches without a record and return at once."""
        with self._condition:
            before = self._misses.get((context, scenario), MissCount(0))
            self._misses[context, scenario] = before.plus(missed)
        self.wake()

    def release(self, lease: str) -> None:
        """Queue a lease's release behind the records, which its next holder must find."""
        with self._condition:
            self._leases.append(lease)
        self.wake()

    def wake(self) -> None:
        """Make the thread process the queue now; start it if it is not running."""
        with self._condition:
            self._is_stopping = False
            self._is_woken = True
            if not self._has_thread:
                name = "dejavu-cache sender"
                thread = background_threads.start_thread(self._turn, name, in_turns=True)
                self._has_thread = thread is not None
            self._condition.notify_all()

    @property
    def _is_working(self) -> bool:
        return self._has_thread and (self._is_woken or self._is_busy)

    def is_sending(self, context: Context) -> bool:
        """Whether records of a context are queued or being sent."""
        with self._condition:
            return self._is_working and context in self._queue.values()

    def flush(self, wait: float) -> bool:
        """Wait until the queue is sent or spooled; return False if `wait` seconds are too short."""
        look, start = current_look(), time.monotonic()
        with self._condition:
            left = max(wait - look.waited, 0.0)
            is_sent = self._condition.wait_for(lambda: not self._is_working, left)
        look.waited += time.monotonic() - start
        return is_sent

    def finish(self, seconds: float) -> None:
        """Send what is queued, unless the server is known not to answer."""
        if self._calls.closed:
            self.flush(seconds)

    def interrupt(self) -> None:
        """End the thread once the queue is empty or waits on disk; `wake` starts another."""
        with self._condition:
            self._is_stopping = True
            self._condition.notify_all()

    def drain(self, wait: float = 0.0, *, in_background: bool = False) -> list[str]:
        """Send the spool's files, the oldest first, and return why some wait.

        Those that the server confirms are deleted.

        Args:
            wait: seconds to wait while another process sends the spool.
            in_background: whether to end where the thread has something else to do.
        """
        problems: list[str] = []
        if not self._spool.waiting():
            return problems
        try:
            with hold_lock(self._spool.lock, wait):
                paths = [file.path for file in self._spool.waiting()]
                for start in range(0, len(paths), BATCH_FILES):
                    if in_background and self._must_stop_tending:
                        break
                    problems += self._send(paths[start : start + BATCH_FILES])
        except Timeout:
            problems.append("another process is sending it")
        except RemoteError as error:
            problems.append(str(error))
        except OSError as error:
            problems.append(
                f"{self._spool.folder}: records that are sent cannot be deleted here: "
                f"{error.strerror}: let this user write to the folder"
            )
        return problems

    def _turn(self) -> bool:
        """Send what is queued, and what waits in the spool; return False to end the thread."""
        with self._condition:
            if (self._is_stopping and not self._is_woken) or background_threads.program_is_ending():
                self._has_thread = False
                self._condition.notify_all()
                return False
            if not self._is_woken:
                is_idle = self._calls.closed or not self._queue
                self._condition.wait(IDLE if is_idle else max(self._calls.due_in, 0.05))
            self._is_woken, self._is_busy = False, True
            queued = list(self._queue)
            misses, self._misses = self._misses, {}
            leases, self._leases = self._leases, []
        try:
            self._send_batch(queued, misses, leases)
        finally:
            with self._condition:
                self._is_busy = False
                self._condition.notify_all()
        self._tend_spool()
        return True

    def _send_batch(
        self,
        queued: list[Path | bytes],
        misses: Mapping[tuple[Context, Scenario], MissCount],
        leases: list[str],
    ) -> None:
        is_sent = not queued
        if queued and self._may_send:
            with suppress(RemoteError):
                self._send(queued)
                is_sent = True
        for item in queued:
            # The disk may have room by now for what it had no room for.
            if is_sent or (isinstance(item, bytes) and self._spool.write(item)):
                with self._condition:
                    self._queue.pop(item, None)
        # A lease that is not released expires, and whoever waits sees the record before that.
        ended = leases if is_sent else []

        def tell(client: ProtocolClient) -> None:
            for lease in ended:
                client.release(lease)
            client.report_misses(misses)

        if ended or misses:
            with suppress(RemoteError):
                self._calls.ask(tell, math.inf)

    @property
    def _may_send(self) -> bool:
        return self._calls.due_in <= 0 and time.monotonic() >= self._refused_until

    @property
    def _must_stop_tending(self) -> bool:
        return self._is_woken or self._is_stopping or background_threads.program_is_ending()

    def _tend_spool(self) -> None:
        now = time.monotonic()
        if self._must_stop_tending:
            return
        if self._may_send and now >= self._next_drain:
            self.drain(in_background=True)
        if now >= self._next_trim:
            self._next_trim = now + TRIM_EVERY
            self._spool.trim()

    def _send(self, items: Iterable[Path | bytes]) -> list[str]:
        """Send encoded record sets and files of the spool together; return why some wait.

        Raises:
            RemoteError: the server does not answer, or refuses the sender; the files stay.
        """
        problems: list[str] = []
        documents: dict[Path | bytes, Document] = {}
        for item in items:
            try:
                if (document := self._read(item)) is not None:
                    documents[item] = document
            except OSError as error:
                problems.append(f"{error.filename or 'a record set'}: {error.strerror}")
        try:
            refused = sum(map(self._upload, _join(documents.values())))
        except (ServerFaultError, RecursionError, OSError) as error:
            # One of them makes the server fail, is nested too deeply, or is refused and cannot be
            # set aside; the others do not wait for it.
            if len(documents) > 1:
                return problems + [problem for item in documents for problem in self._send([item])]
            problems.append(str(error))
        else:
            # Counted first: who finds the spool empty reads the count.
            self.sent += max(len(documents) - refused, 0)
            for item in documents:
                _remove(item)
        if problems:
            self._next_drain = time.monotonic() + PAUSE
        return problems

    def _read(self, item: Path | bytes) -> Document | None:
        """Return a record set; None if another process has sent it, or it is damaged.

        Raises:
            OSError: the file cannot be read, or is damaged and cannot be set aside.
        """
        try:
            text = item if isinstance(item, bytes) else read_file(item)
        except FileNotFoundError:
            return None
        try:
            return _parse_record_set(text)
        except ValueError as error:
            self._spool.put_aside(text, f"the file is damaged: {error}")
            _remove(item)
            return None

    def _upload(self, document: Document) -> int:
        """Send a record set, set aside what is refused for good, and return how many parts are.

        Raises:
            RemoteError: the server does not answer, or refuses the sender.
            OSError: what was refused cannot be written.
        """
        try:
            refusals = self._calls.ask(lambda client: client.upload(document), math.inf)
        except RefusedError as error:
            self._refused_until = time.monotonic() + PAUSE
            url = self._calls.client.url
            reason = "is read-only for this token" if error.status == 403 else "takes nothing"
            warn_once(
                f"refused {url}", f"{url} {reason}: {error}; records wait in {self._spool.folder}"
            )
            raise
        for part, refusal in refusals:
            self._spool.put_aside(encode(part), str(refusal))
        return len(refusals)


def _remove(item: Path | bytes) -> None:
    if isinstance(item, Path):
        with suppress(OSError):
            item.unlink()


def _join(documents: Iterable[Document]) -> list[Document]:
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


def _parse_record_set(text: bytes) -> Document:
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


def _files(folder: Path, pattern: str) -> list[SpooledFile]:
    """Return a folder's files of names like `pattern`; none if it is gone or unreadable."""
    files: list[SpooledFile] = []
    try:  # `Path.glob` raises if another process deletes the folder meanwhile
        names = fnmatch.filter(os.listdir(folder), pattern)
    except OSError:
        return files
    for name in names:
        with suppress(OSError):  # another process has sent it
            status = (folder / name).lstat()
            files.append(SpooledFile(folder / name, max(status.st_size, _BLOCK), status.st_mtime))
    return sorted(files, key=lambda file: (file.written, file.path))


_senders: weakref.WeakSet[Sender] = weakref.WeakSet()


def _after_fork() -> None:
    for sender in _senders:
        sender._reset()


os.register_at_fork(after_in_child=_after_fork)
