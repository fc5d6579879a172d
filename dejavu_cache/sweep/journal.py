"""What a sweep has measured and its store does not have yet: a file of lines on this machine's disk."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from ..errors import DamagedRecordsError, NewerFormatError, StoreError
from ..model.merge import OnConflict, merge_into, merge_records
from ..model.record import Record, RecordSet
from ..model.scenario import Context, Scenario, canonical_json
from ..notices import warn_once
from ..stores import Found, Store
from ..stores.file_layout import read_set

__all__ = ["Journal", "journals", "left_behind"]


def journals(home: str) -> Path:
    """The folder of the journals of all sweeps into a store."""
    from platformdirs import user_cache_dir

    digest = hashlib.sha256(home.encode()).hexdigest()[:16]
    return Path(user_cache_dir("dejavu-cache", appauthor=False)) / "sweeps" / digest


def left_behind(home: str) -> list[Path]:
    """The journals of sweeps that are over, and whose store has not taken what is in them."""
    left = []
    for path in sorted(journals(home).glob("*.jsonl")):
        lock = _lock_of(path)
        with suppress(Timeout):
            lock.acquire()
            if path.exists():  # else its sweep has ended just now
                left.append(path)
            _unlock(lock)
    return left


class Journal(Store):
    """A store behind a journal.

    What is put is a line on the disk when `put` returns; it is handed to the store when a lease ends, so that
    a large file, or a slow server, is written once per scenario. What the store does not take stays in the
    journal, whose lines are an export's: the next sweep into this store hands it over, and
    `dejavu-cache import` reads it too.
    """

    def __init__(self, home: Store, folder: Path | None = None) -> None:
        self.home = home
        self.url = home.url
        self.folder = folder or journals(home.url)
        self.path = (
            self.folder / f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}.jsonl"
        )
        self._held: dict[Context, dict[Scenario, Record]] = {}
        self._lock = threading.Lock()
        self._open: FileLock | None = None
        self._adopt()

    def get(self, context: Context, scenario: Scenario, *, fresh: bool = False) -> Found | None:
        ours = self._held.get(context, {}).get(scenario)
        try:
            found = self.home.get(context, scenario, fresh=fresh)
        except (StoreError, OSError) as error:
            self._away(error)
            found = None
        if ours is None:
            return found
        return Found(merge_records(ours, found.record) if found else ours, self.url)

    def records(self, context: Context) -> Iterator[Record]:
        return self.home.records(context)

    def contexts(self, kernel: str | None = None) -> Iterator[Context]:
        return self.home.contexts(kernel)

    def put(
        self, context: Context, records: Iterable[Record], on_conflict: OnConflict = "newest"
    ) -> None:
        records = tuple(records)
        with self._lock:
            self._append(canonical_json(RecordSet(context=context, records=records)))
            self._held[context] = merge_into(self._held.get(context, {}), records, on_conflict)

    def _append(self, line: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._open is None:
            self._open = _lock_of(self.path)
            self._open.acquire()
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())

    def delete(self, context: Context, scenarios: Iterable[Scenario] | None = None) -> int:
        return self.home.delete(context, scenarios)

    @contextmanager
    def lease(self, context: Context, scenario: Scenario, *, wait: float) -> Iterator[bool]:
        with self.home.lease(context, scenario, wait=wait) as held:
            try:
                yield held
            finally:
                self.flush()

    def flush(self) -> bool:
        """Hands everything to the store; says whether it took it."""
        with self._lock:
            for context, held in list(self._held.items()):
                try:
                    self.home.put_now(context, held.values())
                except (StoreError, OSError) as error:  # those of another context may be taken
                    self._away(error)
                else:
                    del self._held[context]
            if not self._held:
                self.path.unlink(missing_ok=True)
            return not self._held

    def close(self) -> None:
        """Hands over what is held, and leaves the rest on the disk."""
        self.flush()
        if self._open is not None:
            _unlock(self._open)
            self._open = None
        self.home.close()

    def _away(self, error: Exception) -> None:
        warn_once(
            f"journal {self.url}",
            f"{self.url} is away ({error}): what is measured is kept in {self.path} until it takes it",
        )

    def _adopt(self) -> None:
        """Takes over what sweeps left that are no more."""
        for path in sorted(self.folder.glob("*.jsonl")):
            lock = _lock_of(path)
            try:
                lock.acquire()
            except Timeout:
                continue
            try:
                self._take_over(path)
            except FileNotFoundError:  # another worker was here first
                pass
            except NewerFormatError as error:
                warn_once(f"{path}", str(error))
            finally:
                _unlock(lock)

    def _take_over(self, path: Path) -> None:
        whole_sets, damage = _read(path)
        for whole in whole_sets:
            self.put(whole.context, whole.records)
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


def _lock_of(path: Path) -> FileLock:
    return FileLock(path.with_suffix(".lock"), timeout=0, thread_local=False)


def _unlock(lock: FileLock) -> None:
    lock.release()
    with suppress(OSError):
        Path(lock.lock_file).unlink()


def _read(path: Path) -> tuple[list[RecordSet], DamagedRecordsError | None]:
    """What can be read of a journal, and what is wrong with the first line that cannot.

    Raises:
        FileNotFoundError: it is not there any more.
        NewerFormatError: a newer version wrote some of it.
    """
    *lines, rest = path.read_bytes().split(b"\n")
    if rest:  # what was being written when the process died
        warn_once(f"{path}", f"{path} ends in the middle of a line, which is passed over")
    whole_sets: list[RecordSet] = []
    damage: DamagedRecordsError | None = None
    for number, line in enumerate(lines, 1):
        try:
            whole_sets.append(read_set(line, f"{path}, line {number},"))
        except DamagedRecordsError as error:
            damage = damage or error
    return whole_sets, damage
