"""Several stores combined into one."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import TypeVar

from ..errors import StoreError
from ..model.decision_tree import Tree
from ..model.merge import merge_into, merge_records
from ..model.record import Record
from ..model.scenario import Context, Scenario
from ..settings import current_settings
from ..system.notices import warn_once
from .base import Found, FoundTree, Store
from .copies import LocalCopies

__all__ = ["TieredStore", "tiers_of", "wait_longer"]

T = TypeVar("T")


def tiers_of(store: Store) -> tuple[Store, ...]:
    """Return the tiers of a store; a store without tiers is its only one."""
    return store.tiers if isinstance(store, TieredStore) else (store,)


def wait_longer(store: Store, seconds: float) -> Store:
    """Have a store wait for its servers for some seconds, more than a launch may, and return it."""
    for tier in tiers_of(store):
        if hasattr(tier, "wait"):
            tier.wait = seconds
    return store


class TieredStore(Store):
    """Stores, called tiers, from the nearest to the farthest.

    A lookup merges the record's parts of all local tiers. If none has any, it asks the remote
    tiers, and copies their answer to the writable local tiers before them. Writes go to every
    writable tier. A tier that fails is skipped with one warning; `put` raises only if every
    writable tier fails. A launch wants that; a strict store raises the error of any tier.
    """

    def __init__(self, tiers: Sequence[Store], *, strict: bool = False) -> None:
        """Combine stores.

        Args:
            tiers: the stores, from the nearest to the farthest.
            strict: whether an error of one tier is raised instead of skipping the tier.
        """
        self.tiers = tuple(tiers)
        self.strict = strict
        self.url = ",".join(tier.url for tier in self.tiers)
        self.read_only = all(tier.read_only for tier in self.tiers)
        self.remote = any(tier.remote for tier in self.tiers)
        self._copies: LocalCopies | None = None

    def keep_copies_right(self, changed: Callable[[Context], None]) -> None:
        """Revalidate, in the background, the local copies of all records that are looked up.

        Args:
            changed: a method that is called with a context after a local copy has changed.
        """
        if self.remote and current_settings().refresh:
            self._copies = LocalCopies(self.tiers, changed)

    def get(self, context: Context, scenario: Scenario, *, fresh: bool = False) -> Found | None:
        """Return a record merged from the local tiers; ask the remote ones if that is a miss."""
        if self._copies is not None:
            self._copies.watch(context, scenario)
        local = [tier for tier in self.tiers if not tier.remote]
        best: Found | None = None
        for tiers in (local, [tier for tier in self.tiers if tier.remote]):
            if best is not None and not fresh:
                break
            for found in self._ask(lambda tier: tier.get(context, scenario, fresh=fresh), tiers):
                if best is None or found is None:
                    best = best or found
                else:
                    best = Found(merge_records(best.record, found.record), best.store)
        if best is not None:
            self._fill_back(context, best)
        return best

    def _fill_back(self, context: Context, hit: Found) -> None:
        """Copy a record to the writable local tiers before the one that had it."""
        for tier in self.tiers:
            if tier.url == hit.store:
                return
            if not (tier.read_only or tier.remote):
                try:
                    tier.put(context, [hit.record])
                except (StoreError, OSError) as error:
                    if self.strict:
                        raise
                    _warn_of_unwritable(tier, error)

    def records(self, context: Context) -> Iterator[Record]:
        """Return a context's records, merged from all tiers."""
        merged: dict[Scenario, Record] = {}
        for records in self._ask(lambda tier: list(tier.records(context))):
            merged = merge_into(merged, records)
        return iter(sorted(merged.values(), key=lambda record: record.scenario.text))

    def scenario_texts(self, context: Context) -> Iterator[str]:
        """Return the scenarios of all tiers, sorted and without repetition."""
        answers = self._ask(lambda tier: list(tier.scenario_texts(context)))
        return iter(sorted(set(chain.from_iterable(answers))))

    def revision(self, context: Context) -> Hashable | None:
        """Return the revisions of all tiers, or None if one of them cannot tell."""
        revisions = tuple(self._ask(lambda tier: tier.revision(context)))
        return None if None in revisions or len(revisions) < len(self.tiers) else revisions

    def contexts(self, kernel: str | None = None) -> Iterator[Context]:
        """Return the contexts of all tiers, without repetition."""
        answers = self._ask(lambda tier: list(tier.contexts(kernel)))
        return iter(sorted(set(chain.from_iterable(answers)), key=lambda context: context.text))

    def trees(self, kernel: str | None = None) -> Iterator[FoundTree]:
        """Yield the decision trees of all tiers, the nearest tier's first."""
        return chain.from_iterable(self._ask(lambda tier: list(tier.trees(kernel))))

    def put_tree(self, tree: Tree) -> str:
        """Write a tree to the first writable tier that accepts it."""
        return self._write_to_first(lambda tier: tier.put_tree(tree))

    def delete_tree(self, context: Context) -> bool:
        """Remove a tree from every writable tier."""
        self._refuse_if_read_only()
        return sum(tier.delete_tree(context) for tier in self._writable) > 0

    def put(self, context: Context, records: Iterable[Record]) -> None:
        """Merge records into every writable tier; raise if none accepted them."""
        records = list(records)
        self._write(lambda tier: tier.put(context, records), to_all=self.strict)

    def put_now(self, context: Context, records: Iterable[Record]) -> None:
        """Merge records into every writable tier; raise if one did not accept them."""
        records = list(records)
        self._write(lambda tier: tier.put_now(context, records), to_all=True)

    def supersede(self, context: Context, record: Record) -> None:
        """Replace measurements in every writable tier; raise if one did not accept them."""
        self._write(lambda tier: tier.supersede(context, record), to_all=True)

    def _write(self, put: Callable[[Store], None], *, to_all: bool) -> None:
        """Write to every writable tier, and warn of those that fail.

        Raises:
            StoreError: a tier failed although all have to accept, or all tiers did.
        """
        self._refuse_if_read_only()
        failures: list[StoreError] = []
        for tier in self._writable:
            try:
                put(tier)
            except StoreError as error:
                failures.append(error)
                _warn_of_unwritable(tier, error)
        if failures and (to_all or len(failures) == len(self._writable)):
            raise failures[0]

    def delete(self, context: Context, scenarios: Iterable[Scenario] | None = None) -> int:
        """Delete records in every writable tier, and return the largest number of one tier."""
        self._refuse_if_read_only()
        wanted = None if scenarios is None else list(scenarios)
        return max(tier.delete(context, wanted) for tier in self._writable)

    def recall(self, context: Context, parts: Mapping[Scenario, Collection[str]]) -> None:
        """Remove parts of records from every writable local tier."""
        for tier in self._writable:
            if not tier.remote:
                tier.recall(context, parts)

    @contextmanager
    def lease(self, context: Context, scenario: Scenario, *, wait: float) -> Iterator[bool]:
        """Hold the leases of all writable tiers.

        The nearest tier's lease is acquired first, so that only one process of a machine asks a
        server for its lease.
        """
        until = time.monotonic() + wait
        with ExitStack() as leases:
            yield all(
                leases.enter_context(
                    tier.lease(context, scenario, wait=max(until - time.monotonic(), 0.0))
                )
                for tier in self._writable
            )

    def miss(self, context: Context, scenario: Scenario) -> None:
        """Put a scenario on the worklists of all tiers."""
        for _ in self._ask(lambda tier: tier.miss(context, scenario)):
            pass

    def close(self) -> None:
        """Close every tier."""
        for tier in self.tiers:
            tier.close()

    @property
    def _writable(self) -> list[Store]:
        return [tier for tier in self.tiers if not tier.read_only]

    def _write_to_first(self, action: Callable[[Store], T]) -> T:
        """Write to the first writable tier that accepts; if none does, raise the first error."""
        self._refuse_if_read_only()
        failures: list[StoreError] = []
        for tier in self._writable:
            try:
                return action(tier)
            except StoreError as error:
                failures.append(error)
        raise failures[0]

    def _ask(
        self, question: Callable[[Store], T], tiers: Iterable[Store] | None = None
    ) -> Iterator[T]:
        """Yield the tiers' answers; one that fails is left out with one warning.

        A strict store raises its error instead.

        Args:
            question: calls a tier, and reads what it returns to the end.
            tiers: the tiers to ask; None: all.
        """
        for tier in self.tiers if tiers is None else tiers:
            try:
                answer = question(tier)
            except (StoreError, OSError) as error:
                if self.strict:
                    raise
                warn_once(tier.url, f"{tier.url} is passed over: {error}")
                continue
            yield answer


def _warn_of_unwritable(tier: Store, error: Exception) -> None:
    warn_once(f"put {tier.url}", f"nothing is written to {tier.url}: {error}")
