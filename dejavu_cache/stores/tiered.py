"""Several stores combined into one."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from operator import attrgetter

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
        if current_settings().refresh:
            self._copies = LocalCopies(self.tiers, changed)

    def get(self, context: Context, scenario: Scenario, *, fresh: bool = False) -> Found | None:
        """Return a record merged from the local tiers; ask the remote ones if that is a miss."""
        if self._copies is not None:
            self._copies.watch(context, scenario)
        best: Found | None = None
        for tier in sorted(self.tiers, key=attrgetter("remote")):
            if best is not None and tier.remote and not fresh:
                break
            with self._passed_over_if_it_fails(tier):
                found = tier.get(context, scenario, fresh=fresh)
                if best is not None and found is not None:
                    best = Found(merge_records(best.record, found.record), best.store)
                else:
                    best = best or found
        if best is not None and best.store != self.tiers[0].url:
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
        for tier in self.tiers:
            with self._passed_over_if_it_fails(tier):
                merged = merge_into(merged, tier.records(context))
        return iter(sorted(merged.values(), key=lambda record: record.scenario.text))

    def scenario_texts(self, context: Context) -> Iterator[str]:
        """Return the scenarios of all tiers, sorted and without repetition."""
        texts: set[str] = set()
        for tier in self.tiers:
            with self._passed_over_if_it_fails(tier):
                texts.update(tier.scenario_texts(context))
        return iter(sorted(texts))

    def revision(self, context: Context) -> Hashable | None:
        """Return the revisions of all tiers, or None if one of them cannot tell."""
        revisions = []
        for tier in self.tiers:
            with self._passed_over_if_it_fails(tier):
                revisions.append(tier.revision(context))
        is_known = len(revisions) == len(self.tiers) and None not in revisions
        return tuple(revisions) if is_known else None

    def contexts(self, kernel: str | None = None) -> Iterator[Context]:
        """Return the contexts of all tiers, without repetition."""
        contexts: set[Context] = set()
        for tier in self.tiers:
            with self._passed_over_if_it_fails(tier):
                contexts.update(tier.contexts(kernel))
        return iter(sorted(contexts, key=lambda context: context.text))

    def trees(self, kernel: str | None = None) -> Iterator[FoundTree]:
        """Yield the decision trees of all tiers, the nearest tier's first."""
        for tier in self.tiers:
            with self._passed_over_if_it_fails(tier):
                yield from list(tier.trees(kernel))

    def put_tree(self, tree: Tree) -> str:
        """Write a tree to the first writable tier that accepts it."""
        self._refuse_if_read_only()
        failures: list[StoreError] = []
        for tier in self._writable:
            try:
                return tier.put_tree(tree)
            except StoreError as error:
                failures.append(error)
        raise failures[0]

    def delete_tree(self, context: Context) -> bool:
        """Remove a tree from every writable tier."""
        self._refuse_if_read_only()
        return sum(tier.delete_tree(context) for tier in self._writable) > 0

    def put(self, context: Context, records: Iterable[Record]) -> None:
        """Merge records into every writable tier; raise if none accepted them."""
        self._write(context, list(records), now=False)

    def put_now(self, context: Context, records: Iterable[Record]) -> None:
        """Merge records into every writable tier; raise if one did not accept them."""
        self._write(context, list(records), now=True)

    def _write(self, context: Context, records: Sequence[Record], *, now: bool) -> None:
        self._refuse_if_read_only()
        failures: list[StoreError] = []
        for tier in self._writable:
            try:
                (tier.put_now if now else tier.put)(context, records)
            except StoreError as error:
                failures.append(error)
                _warn_of_unwritable(tier, error)
        if failures and (now or self.strict or len(failures) == len(self._writable)):
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
        for tier in self.tiers:
            with self._passed_over_if_it_fails(tier):
                tier.miss(context, scenario)

    def close(self) -> None:
        """Close every tier."""
        for tier in self.tiers:
            tier.close()

    @property
    def _writable(self) -> list[Store]:
        return [tier for tier in self.tiers if not tier.read_only]

    @contextmanager
    def _passed_over_if_it_fails(self, tier: Store) -> Iterator[None]:
        """Warn once of an error of a tier; a strict store raises it."""
        try:
            yield
        except (StoreError, OSError) as error:
            if self.strict:
                raise
            warn_once(tier.url, f"{tier.url} is passed over: {error}")


def _warn_of_unwritable(tier: Store, error: Exception) -> None:
    warn_once(f"put {tier.url}", f"nothing is written to {tier.url}: {error}")
