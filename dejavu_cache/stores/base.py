"""The contract of every store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import NamedTuple

from pydantic import ValidationError

from ..errors import ReadOnlyStoreError, StoreError
from ..model.record import Record, RecordSet
from ..model.scenario import Context, Scenario
from ..model.worth import ONCE, MissCount


class Found(NamedTuple):
    """A record that a store had.

    Attributes:
        store: the URL of the store.
        is_from_stranger: whether some of it must get into no store of the team's.
    """

    record: Record
    store: str
    is_from_stranger: bool = False


class CopyChanges(NamedTuple):
    """Changes of a context's records since its copies were last compared with them.

    Attributes:
        records: the records that have changed.
        recalls: digests of the parts that no copy may keep, by the digest of their scenario; also
            those that were told before.
    """

    records: Sequence[Record]
    recalls: Mapping[str, Collection[str]]


class Store(ABC):
    """A place that keeps records.

    The contract, which `dejavu_cache.testing.StoreContract` checks for every store:

    - A miss is None or an empty iterator; only a store that cannot be used raises, and then a
      `StoreError`.
    - `put` merges: earlier measurements stay, and the same `put` twice is the same as once.
      It is atomic per record: a reader sees all of it or nothing, and a process killed during a
      `put` leaves the earlier record.
    - Any process that opens the same URL after a `put` can `get` the record.
    - `get` and `records` return values; changing the store later does not change them.
    - A read-only store raises `ReadOnlyStoreError` from `put` and `delete`, and is otherwise like
      any other.
    - All methods may be called from several threads.
    """

    url: str
    """URL with which `open_store` opens the same store again."""
    read_only: bool = False
    remote: bool = False
    """Whether a call may wait for a network; such stores are asked after the local ones missed."""

    wait: float | None = None
    """Seconds for which one look, as `current_look` counts them, may wait for a remote store.

    No launch uses a remote store that does not say.
    """

    keeps_copies: bool = False
    """Whether a remote store has copies of its own: its records get into no tier of the team's."""

    @abstractmethod
    def get(self, context: Context, scenario: Scenario, *, fresh: bool = False) -> Found | None:
        """Return the record of a scenario, or None.

        Args:
            context: the kernel, environment and problem of the record.
            scenario: the bucketed key values and dtypes.
            fresh: whether every tier reads again what may have changed since it was last read, and
                a remote one is waited for while it is busy.
        """

    @abstractmethod
    def records(self, context: Context) -> Iterator[Record]:
        """Return all records of a context, sorted by their scenarios' text."""

    def scenario_texts(self, context: Context) -> Iterator[str]:
        """Return `Scenario.text` of all records of a context, as cheaply as the store can."""
        return (record.scenario.text for record in self.records(context))

    def revision(self, context: Context) -> Hashable | None:
        """Return a value that differs after each change of a context's records.

        None means that the store cannot tell without reading them.
        """
        return None

    @abstractmethod
    def contexts(self, kernel: str | None = None) -> Iterator[Context]:
        """Return the contexts of a kernel, or of all, that have records, sorted by their text."""

    @abstractmethod
    def put(self, context: Context, records: Iterable[Record], *, now: bool = False) -> None:
        """Merge records into the store.

        Args:
            context: the kernel, environment and problem of the records.
            records: the records to merge.
            now: whether to return only once they are durable in every tier, which callers need that
                delete their own copy afterwards, or report what was written.

        Raises:
            ReadOnlyStoreError: the store may only be read.
            StoreError: the store, or with `now` one of its tiers, cannot be written, for the reason
                in the message; the call may be repeated.
        """

    @abstractmethod
    def delete(self, context: Context, scenarios: Iterable[Scenario] | None = None) -> int:
        """Delete the records of some scenarios of a context, or of all; return their number."""

    def recall(self, context: Context, parts: Mapping[Scenario, Collection[str]]) -> None:
        """Remove parts of records, and records of which nothing is left.

        Parts are named by the digests of measurements and pins, as `model.merge` makes them.

        Raises:
            ReadOnlyStoreError: the store may only be read.
            StoreError: the store cannot recall, or cannot be written.
        """
        raise StoreError(f"{self.url} cannot recall parts of records")

    def revalidate(
        self, copies: Mapping[Context, Collection[Scenario]]
    ) -> dict[Context, CopyChanges]:
        """Return what has changed of the records of which copies exist elsewhere.

        Contexts without changes and recalls are left out; only a remote store has any. Recalls are
        repeated, since a look-up that began before one may write what it found after it.
        """
        return {}

    def lease(
        self, context: Context, scenario: Scenario, *, wait: float
    ) -> AbstractContextManager[bool]:
        """Hold the right to tune a scenario; at most one process has it at a time.

        Yields True to the holder, and False to a process that has waited `wait` seconds for it.
        Both should call `get(…, fresh=True)` first: an earlier holder may have finished the work.
        A store that cannot lock yields True to everybody: work may be done twice, but nothing is
        lost.
        """
        return nullcontext(True)

    def miss(self, context: Context, scenario: Scenario, missed: MissCount = ONCE) -> None:
        """Put launches of a scenario without a record on the worklist, if the store has one."""

    def record_sets(self, kernel: str | None = None) -> Iterator[RecordSet]:
        """Yield all records as one set per context, which is the form of an export."""
        for context in self.contexts(kernel):
            yield RecordSet(context=context, records=tuple(self.records(context)))

    def close(self) -> None:
        """Send what is queued and release resources; the store may be used again."""

    def _refuse_if_read_only(self) -> None:
        if self.read_only:
            raise ReadOnlyStoreError(f"{self.url} is open for reading only")

    def __enter__(self) -> Store:
        """Return the store itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the store."""
        self.close()

    def __repr__(self) -> str:
        """Return the class, the URL and whether the store may only be read."""
        return f"{type(self).__name__}({self.url!r}{', read-only' if self.read_only else ''})"


def recorded_scenarios(store: Store, context: Context) -> Iterator[Scenario]:
    """Yield the scenarios of a context's records; a text that is none is left out."""
    for text in store.scenario_texts(context):
        with suppress(ValidationError):
            yield Scenario.model_validate_json(text)
