"""What a store promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import NamedTuple

from ..errors import ReadOnlyStoreError, StoreError
from ..model.decision_tree import Tree
from ..model.foreign_result import ForeignResult
from ..model.merge import OnConflict
from ..model.record import Record, RecordSet
from ..model.scenario import Context, Scenario

__all__ = ["Found", "FoundTree", "Store"]


class Found(NamedTuple):
    """A record and the URL of the store that had it."""

    record: Record
    store: str


class FoundTree(NamedTuple):
    """A decision tree and the URL of where it lies."""

    tree: Tree
    url: str


class Store(ABC):
    """Where records live.

    The contract, which `dejavu_cache.testing.StoreContract` checks for every store:

    - A miss is None or nothing; only a store that cannot be used raises, and then a `StoreError`.
    - `put` merges: what was measured before stays, and the same `put` twice is the same as once.
      It is atomic per record: a reader sees all of it or nothing, and a process killed inside it
      leaves what was there before.
    - What `put` was given, any process that opens the same URL afterwards can `get`.
    - `get` and `records` return values; changing the store later does not change them.
    - A read-only store raises `ReadOnlyStoreError` from `put` and `delete`, and nothing else differs.
    - All methods may be called from several threads.
    """

    url: str
    """What `open_store` opens it again with."""
    read_only: bool = False
    remote: bool = False
    """Whether a call may take a network's time: local stores are asked first, and these only if they had nothing."""

    @abstractmethod
    def get(self, context: Context, scenario: Scenario, *, fresh: bool = False) -> Found | None:
        """The record of one scenario, or None.

        Args:
            fresh: look again at what may have changed since the last look, in every tier.
        """

    @abstractmethod
    def records(self, context: Context) -> Iterator[Record]:
        """All the records of a context, in the order of their scenarios' text."""

    @abstractmethod
    def contexts(self, kernel: str | None = None) -> Iterator[Context]:
        """The contexts that have records, of one kernel or of all, in the order of their text."""

    @abstractmethod
    def put(
        self, context: Context, records: Iterable[Record], on_conflict: OnConflict = "newest"
    ) -> None:
        """Merges records into the store.

        Raises:
            ReadOnlyStoreError: the store may only be read.
            MergeConflictError: `on_conflict="fail"` met two timings; nothing was written.
            StoreError: the store cannot be written, for the reason in the message.
        """

    def put_now(self, context: Context, records: Iterable[Record]) -> None:
        """As `put`, but has taken them when it returns: for who would otherwise delete the only copy.

        Raises:
            StoreError: it has not, or one of its tiers has not, and another try may do no harm.
        """
        self.put(context, records)

    @abstractmethod
    def delete(self, context: Context, scenarios: Iterable[Scenario] | None = None) -> int:
        """Drops the records of some scenarios, or of all, and says how many there were."""

    def lease(
        self, context: Context, scenario: Scenario, *, wait: float
    ) -> AbstractContextManager[bool]:
        """The right to tune one scenario, held by at most one process at a time.

        Yields True to the holder, and False to one who waited `wait` seconds in vain. Either should
        `get(…, fresh=True)` before anything else: the holder before may have finished the work.
        A store that cannot lock lets everybody tune: work may be done twice, but nothing is lost.
        """
        return _everybody()

    def miss(self, context: Context, scenario: Scenario) -> None:
        """Notes that a scenario was wanted and not there. A store without a worklist forgets it."""

    def trees(self, kernel: str | None = None) -> Iterator[FoundTree]:
        """The decision trees of one kernel or of all, in any order. A store that keeps none has none."""
        return iter(())

    def put_tree(self, tree: Tree) -> str:
        """Keeps a tree in the place of an earlier one of its context, and returns the URL of where it lies.

        Raises:
            ReadOnlyStoreError: the store may only be read.
            StoreError: it keeps no trees, or cannot be written.
        """
        raise StoreError(f"{self.url} keeps no decision trees: name a folder")

    def delete_tree(self, context: Context) -> bool:
        """Remove the decision tree of a context, and return whether there was one.

        Raises:
            ReadOnlyStoreError: the store may only be read.
        """
        self._refuse_if_read_only()
        return False

    def imported(self, function: str) -> Iterator[ForeignResult]:
        """What other tools found for kernels of this function's name, in any order. Most stores keep none."""
        return iter(())

    def put_imported(self, entries: Iterable[ForeignResult]) -> None:
        """Keeps what other tools found, beside what is there.

        Raises:
            ReadOnlyStoreError: the store may only be read.
            StoreError: it keeps none, or cannot be written.
        """
        raise StoreError(f"{self.url} keeps no results of other tools: name a folder")

    def record_sets(self, kernel: str | None = None) -> Iterator[RecordSet]:
        """Everything, one context at a time: what an export writes."""
        for context in self.contexts(kernel):
            yield RecordSet(context=context, records=tuple(self.records(context)))

    def close(self) -> None:
        """Sends what is queued and lets go of what is held; the store may be used again."""

    def _refuse_if_read_only(self) -> None:
        if self.read_only:
            raise ReadOnlyStoreError(f"{self.url} is open for reading only")

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r}{', read-only' if self.read_only else ''})"


@contextmanager
def _everybody() -> Iterator[bool]:
    yield True
