"""What a sweep has measured and its store does not have yet: a file of lines on this machine's disk."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout
from pydantic import ValidationError

from ..errors import StoreError
from ..notices import warn_once
from ..records import Context, OnConflict, Record, RecordSet, Scenario, canonical_json, merge_into, merge_records
from ..stores import Found, Store

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
        self.path = self.folder / f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}.jsonl"
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

    def put(self, context: Context, records: Iterable[Record], on_conflict: OnConflict = "newest") -> None:
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
                    self.home.put(context, held.values())
                except (StoreError, OSError) as error:
                    self._away(error)
                    return False
                del self._held[context]
            self.path.unlink(missing_ok=True)
            return True

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
            f"{self.url} is away ({error}): what is measured is kept in {self.path} until it is back",
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
                for whole in _read(path):
                    self.put(whole.context, whole.records)
                if self.flush() or self.path.exists():
                    path.unlink(missing_ok=True)
            finally:
                _unlock(lock)


def _lock_of(path: Path) -> FileLock:
    return FileLock(path.with_suffix(".lock"), timeout=0, thread_local=False)


def _unlock(lock: FileLock) -> None:
    lock.release()
    with suppress(OSError):
        Path(lock.lock_file).unlink()


def _read(path: Path) -> Iterator[RecordSet]:
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield RecordSet.model_validate_json(line)
        except ValidationError:  # the line that was being written when the process died
            warn_once(f"{path}", f"{path} ends in the middle of a line, which is passed over")
