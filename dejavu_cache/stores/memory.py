"""A store in the memory of a process."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

from ..model.merge import merge_into, without_parts
from ..model.record import Record
from ..model.scenario import Context, Scenario
from ..system.fork_lock import ForkCondition
from .base import Found, Store

__all__ = ["MemoryStore"]


class MemoryStore(Store):
    """Records in a dictionary: `memory://`. Every store opened with this URL is a new one."""

    url = "memory://"

    def __init__(self) -> None:
        """Create an empty store."""
        self._records: dict[Context, dict[Scenario, Record]] = {}
        self._changes = 0
        self._lock = ForkCondition()
        self._leases: dict[tuple[int, str, str], bool] = {}

    def get(self, context: Context, scenario: Scenario, *, fresh: bool = False) -> Found | None:
        """Return a scenario's record; there is nothing to read again."""
        record = self._records.get(context, {}).get(scenario)
        return Found(record, self.url) if record else None

    def records(self, context: Context) -> Iterator[Record]:
        """Return a context's records as they are at the time of the call."""
        with self._lock:
            records = list(self._records.get(context, {}).values())
        return iter(sorted(records, key=lambda record: record.scenario.text))

    def revision(self, context: Context) -> int:
        """Return the number of changes of the whole store."""
        return self._changes

    def contexts(self, kernel: str | None = None) -> Iterator[Context]:
        """Return the contexts as they are at the time of the call."""
        with self._lock:
            held = [context for context, records in self._records.items() if records]
        contexts = [context for context in held if kernel in (None, context.kernel.name)]
        return iter(sorted(contexts, key=lambda context: context.text))

    def put(self, context: Context, records: Iterable[Record]) -> None:
        """Merge records into a context, all of them or none."""
        self._refuse_if_read_only()
        with self._lock:
            before = self._records.get(context, {})
            merged = merge_into(before, records)
            if merged != before:
                self._records[context] = merged
                self._changes += 1

    def delete(self, context: Context, scenarios: Iterable[Scenario] | None = None) -> int:
        """Delete records; a context without any is none."""
        self._refuse_if_read_only()
        with self._lock:
            before = self._records.get(context, {})
            gone = set(before) if scenarios is None else before.keys() & set(scenarios)
            if gone:
                kept = {scenario: before[scenario] for scenario in before.keys() - gone}
                self._records[context] = kept
                self._changes += 1
            return len(gone)

    def recall(self, context: Context, parts: Mapping[Scenario, Collection[str]]) -> None:
        """Remove parts of records, and records of which nothing is left."""
        self._refuse_if_read_only()
        with self._lock:
            before = self._records.get(context, {})
            records = dict(before)
            for scenario in before.keys() & parts.keys():
                remaining = without_parts(records.pop(scenario), parts[scenario])
                if remaining is not None:
                    records[scenario] = remaining
            if records != before:
                self._records[context] = records
                self._changes += 1

    @contextmanager
    def lease(self, context: Context, scenario: Scenario, *, wait: float) -> Iterator[bool]:
        """Hold a scenario's lease among the threads of this process."""
        # A forked child has the parent's leases, but not the threads that would end them.
        lease, is_ours = (os.getpid(), context.digest, scenario.digest), False
        try:
            with self._lock:
                if self._lock.wait_for(lambda: lease not in self._leases, wait):
                    self._leases[lease] = is_ours = True
            yield is_ours
        finally:
            if is_ours:  # first, so that no signal handler's error keeps the lease
                del self._leases[lease]
            with self._lock:
                self._lock.notify_all()
