"""A store that lasts as long as its process."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from ..model.merge import OnConflict, merge_into
from ..model.record import Record
from ..model.scenario import Context, Scenario
from .base import Found, Store

__all__ = ["MemoryStore"]


class MemoryStore(Store):
    """Records in a dictionary: `memory://`. Each one opened is empty and its own."""

    url = "memory://"

    def __init__(self) -> None:
        self._held: dict[Context, dict[Scenario, Record]] = {}
        self._lock = threading.Lock()
        self._leases: dict[tuple[Context, Scenario], threading.Lock] = {}

    def get(self, context: Context, scenario: Scenario, *, fresh: bool = False) -> Found | None:
        record = self._held.get(context, {}).get(scenario)
        return Found(record, self.url) if record else None

    def records(self, context: Context) -> Iterator[Record]:
        with self._lock:
            held = list(self._held.get(context, {}).values())
        return iter(sorted(held, key=lambda record: record.scenario.text))

    def contexts(self, kernel: str | None = None) -> Iterator[Context]:
        with self._lock:
            held = [context for context in self._held if kernel in (None, context.kernel.name)]
        return iter(sorted(held, key=lambda context: context.text))

    def put(
        self, context: Context, records: Iterable[Record], on_conflict: OnConflict = "newest"
    ) -> None:
        with self._lock:
            merged = merge_into(self._held.get(context, {}), records, on_conflict)
            if merged:
                self._held[context] = merged

    def delete(self, context: Context, scenarios: Iterable[Scenario] | None = None) -> int:
        with self._lock:
            held = self._held.get(context, {})
            gone = [
                scenario
                for scenario in (list(held) if scenarios is None else scenarios)
                if scenario in held
            ]
            for scenario in gone:
                del held[scenario]
            if not held:
                self._held.pop(context, None)
            return len(gone)

    @contextmanager
    def lease(self, context: Context, scenario: Scenario, *, wait: float) -> Iterator[bool]:
        with self._lock:
            lock = self._leases.setdefault((context, scenario), threading.Lock())
        held = lock.acquire(timeout=wait)
        try:
            yield held
        finally:
            if held:
                lock.release()
