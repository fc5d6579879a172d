"""Several stores asked in order, as one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TypeVar

from ..errors import MergeConflictError, StoreError
from ..model.decision_tree import Tree
from ..model.foreign_result import ForeignResult
from ..model.merge import OnConflict, merge_into
from ..model.record import Record
from ..model.scenario import Context, Scenario
from ..notices import warn_once
from .base import Found, FoundTree, Store

__all__ = ["TieredStore"]

T = TypeVar("T")
U = TypeVar("U")


class TieredStore(Store):
    """Stores from the nearest to the farthest.

    What the local ones have of a record is put together; the remote ones are asked if that is nothing,
    and what they answer is given to the writable ones before them. What is written goes to every
    writable one. A tier that fails is passed over with one warning; only when
    every writable tier fails does `put` raise.
    """

    def __init__(self, tiers: Sequence[Store]) -> None:
        self.tiers = tuple(tiers)
        self.url = ",".join(tier.url for tier in self.tiers)
        self.read_only = all(tier.read_only for tier in self.tiers)
        self.remote = any(tier.remote for tier in self.tiers)

    def get(self, context: Context, scenario: Scenario, *, fresh: bool = False) -> Found | None:
        best = self._gather(
            context, scenario, fresh, [tier for tier in self.tiers if not tier.remote]
        )
        if best is None or fresh:
            best = self._gather(
                context, scenario, fresh, [tier for tier in self.tiers if tier.remote], best
            )
        if best is not None:
            self._fill_back(context, best)
        return best

    def _gather(
        self,
        context: Context,
        scenario: Scenario,
        fresh: bool,
        tiers: Sequence[Store],
        best: Found | None = None,
    ) -> Found | None:
        for tier in tiers:
            found = self._ask(tier, partial(tier.get, context, scenario, fresh=fresh), None)
            if found is not None:
                best = (
                    found if best is None else Found(_union(best.record, found.record), best.store)
                )
        return best

    def _fill_back(self, context: Context, found: Found) -> None:
        for tier in self.tiers:
            if tier.url == found.store:
                return
            if not (tier.read_only or tier.remote):
                self._ask(tier, partial(tier.put, context, [found.record]), None)

    def records(self, context: Context) -> Iterator[Record]:
        merged: dict[Scenario, Record] = {}
        for tier in self.tiers:
            merged = merge_into(
                merged, self._ask(tier, partial(_listed, tier.records, context), [])
            )
        return iter(sorted(merged.values(), key=lambda record: record.scenario.text))

    def contexts(self, kernel: str | None = None) -> Iterator[Context]:
        found: set[Context] = set()
        for tier in self.tiers:
            found.update(self._ask(tier, partial(_listed, tier.contexts, kernel), []))
        return iter(sorted(found, key=lambda context: context.text))

    def trees(self, kernel: str | None = None) -> Iterator[FoundTree]:
        for tier in self.tiers:
            nothing: list[FoundTree] = []
            yield from self._ask(tier, partial(_listed, tier.trees, kernel), nothing)

    def put_tree(self, tree: Tree) -> str:
        """Keeps it in the first writable tier that can."""
        return self._first_that_can(lambda tier: tier.put_tree(tree))

    def delete_tree(self, context: Context) -> bool:
        """Remove it from every writable tier."""
        self._refuse_if_read_only()
        return any([tier.delete_tree(context) for tier in self._writable])

    def imported(self, function: str) -> Iterator[ForeignResult]:
        for tier in self.tiers:
            nothing: list[ForeignResult] = []
            yield from self._ask(tier, partial(_listed, tier.imported, function), nothing)

    def put_imported(self, entries: Iterable[ForeignResult]) -> None:
        """Keeps them in the first writable tier that can."""
        held = list(entries)
        self._first_that_can(lambda tier: tier.put_imported(held))

    def put(
        self, context: Context, records: Iterable[Record], on_conflict: OnConflict = "newest"
    ) -> None:
        records = list(records)
        failures = self._put_in_each(lambda tier: tier.put(context, records, on_conflict))
        if len(failures) == len(self._writable):
            raise failures[0]

    def put_now(self, context: Context, records: Iterable[Record]) -> None:
        records = list(records)
        failures = self._put_in_each(lambda tier: tier.put_now(context, records))
        if failures:
            raise failures[0]

    def _put_in_each(self, put: Callable[[Store], None]) -> list[StoreError]:
        """Writes to all that can be written, and says what those raised that did not take it."""
        self._refuse_if_read_only()
        failures: list[StoreError] = []
        for tier in self._writable:
            try:
                put(tier)
            except MergeConflictError:
                raise
            except StoreError as error:
                failures.append(error)
                warn_once(f"put {tier.url}", f"nothing is written to {tier.url}: {error}")
        return failures

    def delete(self, context: Context, scenarios: Iterable[Scenario] | None = None) -> int:
        self._refuse_if_read_only()
        wanted = None if scenarios is None else list(scenarios)
        return max(tier.delete(context, wanted) for tier in self._writable)

    @contextmanager
    def lease(self, context: Context, scenario: Scenario, *, wait: float) -> Iterator[bool]:
        """The leases of all writable tiers, the nearest first, so that one process per machine asks the network."""
        until = time.monotonic() + wait
        with ExitStack() as held:
            yield all(
                held.enter_context(
                    tier.lease(context, scenario, wait=max(until - time.monotonic(), 0.0))
                )
                for tier in self._writable
            )

    def miss(self, context: Context, scenario: Scenario) -> None:
        for tier in self.tiers:
            self._ask(tier, partial(tier.miss, context, scenario), None)

    def close(self) -> None:
        for tier in self.tiers:
            tier.close()

    @property
    def _writable(self) -> list[Store]:
        return [tier for tier in self.tiers if not tier.read_only]

    def _first_that_can(self, action: Callable[[Store], T]) -> T:
        self._refuse_if_read_only()
        failures: list[StoreError] = []
        for tier in self._writable:
            try:
                return action(tier)
            except StoreError as error:
                failures.append(error)
        raise failures[0]

    def _ask(self, tier: Store, question: Callable[[], T], otherwise: T) -> T:
        try:
            return question()
        except (StoreError, OSError) as error:
            warn_once(tier.url, f"{tier.url} is passed over: {error}")
            return otherwise


def _listed(question: Callable[[U], Iterable[T]], about: U) -> list[T]:
    """All of an answer at once, so that what fails on the way fails here."""
    return list(question(about))


def _union(one: Record, two: Record) -> Record:
    return merge_into({one.scenario: one}, [two])[one.scenario]
