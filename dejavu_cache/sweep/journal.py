"""A local journal of the measurements that a sweep has not yet handed to its store."""

from __future__ import annotations

import hashlib
import os
import socket
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from filelock import FileLock, Timeout

from ..errors import DamagedRecordsError, StoreError
from ..model.merge import merge_into, merge_records
from ..model.record import Record, RecordSet
from ..model.scenario import Context, Scenario, canonical_json
from ..stores import Found, Store
from ..stores.file_layout import read_set
from ..stores.folder import describe_failure
from ..system.fork_lock import ForkLock
from ..system.notices import warn_once
from ..system.safe_files import open_to_append, read_file, user_folder

__all__ = ["Journal", "abandoned_journals"]


def _journal_folder(home: str) -> Path:
    """Return the folder that holds the journals of all sweeps into a store."""
    digest = hashlib.sha256(home.encode()).hexdigest()[:16]
    return user_folder("sweeps") / digest


def abandoned_journals(home: str) -> list[Path]:
    """Return the journals that ended sweeps could not hand to their store."""
    abandoned = []
    for path in sorted(_journal_folder(home).glob("*.jsonl")):
        lock = _lock_of(path)
        with suppress(Timeout, OSError):
            lock.acquire()
            if path.exists():  # otherwise its sweep has ended just now
                abandoned.append(path)
            _unlock(lock)
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

    Attributes:
        unsaved: the error of the last write to the journal that failed, while the store has not
            accepted its records either; else None.
    """

    def __init__(self, home: Store, folder: Path | None = None) -> None:
        """Choose the journal's file; the first write creates it."""
        self.home = home
        self.url = home.url
        self.folder = folder or _journal_folder(home.url)
        self.path = (
            self.folder / f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}.jsonl"
        )
        self._pending: dict[Context, dict[Scenario, Record]] = {}
        self._lock = ForkLock()
        self._file_lock: FileLock | None = None
        self.unsaved: StoreError | None = None
        self._take_over_abandoned()

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
            StoreError: neither the journal nor the store can be written; `flush` tries again.
        """
        records = tuple(records)
        failure: StoreError | None = None
        with self._lock:
            try:
                self._append(canonical_json(RecordSet(context=context, records=records)))
            except StoreError as error:
                warn_once(f"{self.path}", f"{error}; measurements go to {self.url} one by one")
                self.unsaved = failure = error
            self._pending[context] = merge_into(self._pending.get(context, {}), records)
            if self.unsaved is not None and not self._hand_over() and failure is not None:
                raise failure

    def _append(self, line: str) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if self._file_lock is None:
                lock = _lock_of(self.path)
                lock.acquire()
                self._file_lock = lock
            with open(open_to_append(self.path), "ab", buffering=0) as file:
                _append_whole(file, f"{line}\n".encode())
        except OSError as error:
            raise describe_failure(error, self.path, "written") from error

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

    def flush(self) -> bool:
        """Hand all records to the store; return whether it accepted all of them."""
        with self._lock:
            return self._hand_over()

    def _hand_over(self) -> bool:
        for context, records in list(self._pending.items()):
            try:
                self.home.put_now(context, records.values())
            except (StoreError, OSError) as error:  # other contexts may still be accepted
                self._warn_of_refusal(error)
            else:
                del self._pending[context]
        if not self._pending:
            self.unsaved = None
            with suppress(OSError):  # a journal that stays is handed over again, to no effect
                self.path.unlink()
        return not self._pending

    def close(self) -> None:
        """Hand the records to the store; those that it does not accept stay on the disk."""
        self.flush()
        if self._file_lock is not None:
            _unlock(self._file_lock)
            self._file_lock = None
        self.home.close()

    def _warn_of_refusal(self, error: Exception) -> None:
        place = "only in memory" if self.unsaved else f"in {self.path}"
        warn_once(
            f"journal {self.url} {place}",
            f"{self.url} is away ({error}): measurements are kept {place} until it accepts them",
        )

    def _take_over_abandoned(self) -> None:
        """Take over the journals of sweeps that have ended."""
        for path in sorted(self.folder.glob("*.jsonl")):
            lock = _lock_of(path)
            try:
                lock.acquire()
            except Timeout:
                continue
            except OSError as error:
                warn_once(f"{path}", f"{path} cannot be locked, and is passed over: {error}")
                continue
            try:
                self._take_over(path)
            except FileNotFoundError:  # another worker has taken it over
                pass
            except (StoreError, OSError) as error:
                warn_once(f"{path}", str(error))
            finally:
                _unlock(lock)

    def _take_over(self, path: Path) -> None:
        record_sets, damage = _read_journal(path)
        for record_set in record_sets:
            self.put(record_set.context, record_set.records)
        self.flush()
        if damage is None:
            path.unlink()
            return
        aside = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
        path.replace(aside)
        warn_once(
            f"{path}",
            f"{damage}; the other lines are taken over, and the file is kept as {aside.name}",
        )


def _append_whole(file: FileIO, line: bytes) -> None:
    """Write a line durably, or nothing of it: the next line would be lost with half of this one."""
    size = os.fstat(file.fileno()).st_size
    try:
        rest = memoryview(line)
        while rest:
            rest = rest[file.write(rest) :]
        os.fsync(file.fileno())
    except BaseException:
        with suppress(OSError):
            file.truncate(size)
        raise


def _lock_of(path: Path) -> FileLock:
    return FileLock(path.with_suffix(".lock"), timeout=0, thread_local=False)


def _unlock(lock: FileLock) -> None:
    with suppress(OSError):
        lock.release()
        Path(lock.lock_file).unlink()


def _read_journal(path: Path) -> tuple[list[RecordSet], DamagedRecordsError | None]:
    """Return the readable lines of a journal, and the error of the first unreadable one.

    Raises:
        FileNotFoundError: the journal was removed meanwhile.
        NewerFormatError: a newer version wrote some of its lines.
    """
    *lines, rest = read_file(path).split(b"\n")
    if rest:  # the process died while it wrote this line
        warn_once(f"{path}", f"{path} ends in the middle of a line, which is passed over")
    record_sets: list[RecordSet] = []
    damage: DamagedRecordsError | None = None
    for number, line in enumerate(lines, 1):
        try:
            record_sets.append(read_set(line, f"{path}, line {number},"))
        except DamagedRecordsError as error:
            damage = damage or error
    return record_sets, damage
