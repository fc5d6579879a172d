"""A local journal of the measurements that a sweep has not yet handed to its store."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import socket
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from ..errors import DamagedRecordsError, StoreError
from ..model.merge import merge_into, merge_records
from ..model.record import Record, RecordSet
from ..model.scenario import Context, Scenario, canonical_json
from ..stores import Found, Store
from ..stores.file_layout import read_set
from ..system.fork_lock import ForkLock
from ..system.notices import warn_once
from ..system.safe_files import open_to_append, user_folder

__all__ = ["Journal", "abandoned_journals"]


def _journal_folder(home: str) -> Path:
    """Return the folder that holds the journals of all sweeps into a store."""
    digest = hashlib.sha256(home.encode()).hexdigest()[:16]
    return user_folder("sweeps") / digest


@contextmanager
def _unless_written(path: Path) -> Iterator[bytes]:
    """Yield a journal's content; nobody else takes it over meanwhile.

    Raises:
        BlockingIOError: the worker that writes it still runs, or another one takes it over.
        FileNotFoundError: another one has taken it over.
    """
    with path.open("r+b") as file:  # some file systems lock only what may be written
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield file.read()


def abandoned_journals(home: str) -> list[Path]:
    """Return the journals that ended sweeps could not hand to their store."""
    abandoned = []
    for path in sorted(_journal_folder(home).glob("*.jsonl")):
        try:
            with _unless_written(path) as content:
                if content:
                    abandoned.append(path)
        except OSError:
            continue
    return abandoned


class Journal(Store):
    """A store that writes records to a journal on the local disk first.

    `put` returns when its records are a line of the journal on the disk. They are handed to the
    store when a lease ends, so that a large file, or a slow server, is written once per scenario.
    Records that the store does not accept stay in the journal. Its lines have the format of an
    export: the next sweep into this store hands them over, and `dejavu-cache import` reads them.

    Where the journal cannot be written, `put` hands its records to the store at once.

    Args:
        home: the store that the records are for.
        folder: folder of the journal; by default the store's folder in the user's cache.
    """

    def __init__(self, home: Store, folder: Path | None = None) -> None:
        """Take over what ended sweeps have left; the first write creates a journal."""
        self.home = home
        self.url = home.url
        self.folder = folder or _journal_folder(home.url)
        self._file: FileIO | None = None
        self._pending: dict[Context, dict[Scenario, Record]] = {}
        self._lock = ForkLock()
        for path in sorted(self.folder.glob("*.jsonl")):
            self._take_over(path)
        self.flush()

    def _take_over(self, path: Path) -> None:
        """Make the content of another journal part of this one, and remove it."""
        try:
            with _unless_written(path) as content:
                record_sets, damage = _parse(content, path)
                for record_set in record_sets:
                    self.put(record_set.context, record_set.records)
                if damage:
                    aside = path.rename(path.with_suffix(".damaged"))
                    warn_once(f"{path}", f"{damage}; the rest is taken over; {aside} has all of it")
                elif content:  # else a worker is about to write it
                    path.unlink()
        except (BlockingIOError, FileNotFoundError):
            pass
        except (StoreError, OSError) as error:
            warn_once(f"{path}", f"{path} is not taken over: {error}")

    def get(self, context: Context, scenario: Scenario, *, fresh: bool = False) -> Found | None:
        """Return the store's record merged with the one that it has not accepted yet."""
        pending = self._pending.get(context, {}).get(scenario)
        try:
            stored = self.home.get(context, scenario, fresh=fresh)
        except (StoreError, OSError) as error:
            self._warn_of_refusal(error)
            stored = None
        if pending is None:
            return stored
        return Found(merge_records(pending, stored.record) if stored else pending, self.url)

    def records(self, context: Context) -> Iterator[Record]:
        """Return the store's records of a context."""
        return self.home.records(context)

    def contexts(self, kernel: str | None = None) -> Iterator[Context]:
        """Return the store's contexts."""
        return self.home.contexts(kernel)

    def put(self, context: Context, records: Iterable[Record]) -> None:
        """Write records to the journal; `flush` hands them to the store.

        Raises:
            StoreError: neither the journal nor the store can be written.
        """
        records = tuple(records)
        with self._lock:
            try:
                self._append(canonical_json(RecordSet(context=context, records=records)))
            except OSError as error:
                warn_once(
                    f"{self.folder}",
                    f"{self.folder} cannot be written ({error}); measurements go to {self.url} "
                    "one by one",
                )
                self.home.put_now(context, records)
                return
            earlier = self._pending.get(context, {})
            self._pending[context] = merge_into(earlier, records)

    def _append(self, line: str) -> None:
        """Write a line durably.

        It begins with its newline, so that what a full disk cuts off spoils no other line.
        """
        if self._file is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}.jsonl"
            file = FileIO(open_to_append(self.folder / name), "ab")
            fcntl.flock(file, fcntl.LOCK_EX)
            self._file, self._path = file, self.folder / name
        data = f"\n{line}".encode()
        if self._file.write(data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        os.fsync(self._file.fileno())

    def delete(self, context: Context, scenarios: Iterable[Scenario] | None = None) -> int:
        """Delete records from the store."""
        return self.home.delete(context, scenarios)

    @contextmanager
    def lease(self, context: Context, scenario: Scenario, *, wait: float) -> Iterator[bool]:
        """Take the store's lease, and hand the records to the store before it ends."""
        with self.home.lease(context, scenario, wait=wait) as acquired:
            try:
                yield acquired
            finally:
                self.flush()

    def flush(self) -> None:
        """Hand all records to the store, and remove the journal if it has accepted all of them."""
        with self._lock:
            for context, records in list(self._pending.items()):
                try:
                    self.home.put_now(context, records.values())
                except (StoreError, OSError) as error:  # other contexts may still be accepted
                    self._warn_of_refusal(error)
                else:
                    del self._pending[context]
            if self._file is not None and not self._pending:
                self._path.unlink(missing_ok=True)
                self._file.close()
                self._file = None

    def close(self) -> None:
        """Hand the records to the store; those that it does not accept stay on the disk."""
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None
        self.home.close()

    def _warn_of_refusal(self, error: Exception) -> None:
        warn_once(
            f"journal {self.url}",
            f"{self.url} is away ({error}): measurements are kept in {self.folder} until it "
            "accepts them",
        )


def _parse(content: bytes, path: Path) -> tuple[list[RecordSet], DamagedRecordsError | None]:
    """Return the readable lines of a journal, and the error of the first unreadable one.

    Raises:
        NewerFormatError: a newer version wrote some of its lines.
    """
    record_sets: list[RecordSet] = []
    damage: DamagedRecordsError | None = None
    for number, line in enumerate(content.split(b"\n")):
        try:
            if line:
                record_sets.append(read_set(line, f"{path}, line {number},"))
        except DamagedRecordsError as error:
            damage = damage or error
    return record_sets, damage
