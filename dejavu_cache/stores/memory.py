"""A store that lasts as long as its process.

Immutable snapshots, named by the digest of their content: `frozen:///folder/DIGEST.jsonl`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ..errors import SnapshotError, StoreError
from ..model.merge import OnConflict, merge_into, without_parts
from ..model.record import Record, record_set_line
from ..model.scenario import Context, Scenario
from ..system.fork_lock import ForkCondition
from ..system.safe_files import read_file, replace_file
from .base import Found, Store
from .file import delete_unfinished
from .file_layout import read_set

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

    def put(
        self, context: Context, records: Iterable[Record], on_conflict: OnConflict = "newest"
    ) -> None:
        """Merge records into a context, all of them or none."""
        with self._lock:
            self._changes += 1
            merged = merge_into(self._records.get(context, {}), records, on_conflict)
            if merged:
                self._records[context] = merged

    def delete(self, context: Context, scenarios: Iterable[Scenario] | None = None) -> int:
        """Delete records, and the context with its last one."""
        with self._lock:
            records = self._records.get(context, {})
            self._changes += 1
            deleted = [
                scenario
                for scenario in (list(records) if scenarios is None else scenarios)
                if scenario in records
            ]
            for scenario in deleted:
                del records[scenario]
            if not records:
                self._records.pop(context, None)
            return len(deleted)

    def recall(self, context: Context, parts: Mapping[Scenario, Collection[str]]) -> None:
        """Remove parts of records, and records of which nothing is left."""
        with self._lock:
            records = self._records.get(context, {})
            self._changes += 1
            for scenario, digests in parts.items():
                if scenario in records:
                    remaining = without_parts(records[scenario], digests)
                    if remaining is None:
                        del records[scenario]
                    else:
                        records[scenario] = remaining
            if not records:
                self._records.pop(context, None)

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
    """Records in a file whose name is the SHA-256 of its content.

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
            super().put(record_set.context, record_set.records)

    def put(
        self, context: Context, records: Iterable[Record], on_conflict: OnConflict = "newest"
    ) -> None:
        """Raise `ReadOnlyStoreError`."""
        self._refuse_if_read_only()

    def delete(self, context: Context, scenarios: Iterable[Scenario] | None = None) -> int:
        """Raise `ReadOnlyStoreError`."""
        self._refuse_if_read_only()
        return 0

    def recall(self, context: Context, parts: Mapping[Scenario, Collection[str]]) -> None:
        """Raise `ReadOnlyStoreError`."""
        self._refuse_if_read_only()


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
