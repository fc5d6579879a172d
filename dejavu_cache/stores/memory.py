"""Stores in the memory of a process: one that lasts as long as it, and immutable snapshots."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ..errors import SnapshotError, StoreError
from ..model.merge import merge_into, without_parts
from ..model.record import Record, record_set_line
from ..model.scenario import Context, Scenario
from ..system.fork_lock import ForkCondition
from ..system.safe_files import read_file, replace_file
from .base import Found, Store
from .file_layout import read_set
from .folder import delete_unfinished

__all__ = [
    "FrozenStore",
    "MemoryStore",
    "freeze",
]


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
            contexts = [
                context for context in self._records if kernel in (None, context.kernel.name)
            ]
        return iter(sorted(contexts, key=lambda context: context.text))

    def put(self, context: Context, records: Iterable[Record]) -> None:
        """Merge records into a context, all of them or none."""
        self._refuse_if_read_only()
        self._merge(context, records)

    def _merge(self, context: Context, records: Iterable[Record]) -> None:
        with self._lock:
            before = self._records.get(context, {})
            merged = merge_into(before, records)
            if merged != before:
                self._replace(context, merged)

    def _replace(self, context: Context, records: dict[Scenario, Record]) -> None:
        """Let records stand instead of a context's; a context without any is none."""
        self._changes += 1
        if records:
            self._records[context] = records
        else:
            self._records.pop(context, None)

    def delete(self, context: Context, scenarios: Iterable[Scenario] | None = None) -> int:
        """Delete records, and the context with its last one."""
        self._refuse_if_read_only()
        with self._lock:
            before = self._records.get(context, {})
            gone = set(before) if scenarios is None else before.keys() & set(scenarios)
            if gone:
                kept = {scenario: before[scenario] for scenario in before.keys() - gone}
                self._replace(context, kept)
            return len(gone)

    def recall(self, context: Context, parts: Mapping[Scenario, Collection[str]]) -> None:
        """Remove parts of records, and records of which nothing is left."""
        self._refuse_if_read_only()
        with self._lock:
            records = dict(self._records.get(context, {}))
            for scenario in records.keys() & parts.keys():
                remaining = without_parts(records.pop(scenario), parts[scenario])
                if remaining is not None:
                    records[scenario] = remaining
            self._replace(context, records)

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


SUFFIX = ".jsonl"


class FrozenStore(MemoryStore):
    """Records in a file named by the SHA-256 of its content: `frozen:///folder/DIGEST.jsonl`.

    The file is read completely and verified when it is opened.
    """

    read_only = True

    def __init__(self, path: Path) -> None:
        """Read and verify a snapshot.

        Raises:
            SnapshotError: the snapshot is missing, or its content does not have the digest in its
                name.
        """
        super().__init__()
        path = path if path.suffix == SUFFIX else path.with_name(path.name + SUFFIX)
        self.url = path.absolute().as_uri().replace("file:", "frozen:", 1)
        try:
            # A link does no harm here, since the content is checked, and mounts are made of them.
            content = read_file(Path(os.path.realpath(path)))
        except OSError as error:
            raise SnapshotError(
                f"the frozen snapshot {path} cannot be read ({error.strerror}): copy it there, or "
                "name another in DEJAVU_CACHE_URL; `dejavu-cache freeze` makes one"
            ) from None
        if hashlib.sha256(content).hexdigest() != path.stem:
            raise SnapshotError(
                f"{path} is not the snapshot that its name says: it was changed or cut; "
                "copy it again"
            )
        for line in content.splitlines():
            record_set = read_set(line, str(path))
            self._merge(record_set.context, record_set.records)


def freeze(store: Store, folder: Path, kernels: str | Collection[str] | None = None) -> FrozenStore:
    """Write a store's records to a snapshot; equal records give an equal name.

    Args:
        store: the store to copy.
        folder: the folder of the snapshot; it is created.
        kernels: qualified names of the kernels to copy; None copies all.

    Raises:
        StoreError: the snapshot cannot be written.
    """
    names = {kernels} if isinstance(kernels, str) else kernels
    lines: list[str] = []
    for context in store.contexts():
        if names is None or context.kernel.name in names:
            lines += record_set_line(context, store.records(context))
    content = "".join(lines).encode()
    path = folder.absolute() / f"{hashlib.sha256(content).hexdigest()}{SUFFIX}"
    delete_unfinished(path)
    try:
        replace_file(path, content, mode=0o444)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}") from None
    return FrozenStore(path)
