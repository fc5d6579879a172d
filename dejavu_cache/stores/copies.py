"""Revalidation, in the background, of the local copies that launches have of remote records.

A launch takes a record from the nearest store that has it. Without revalidation, a pin, a promotion
or a deletion on a server would never reach a machine that has a copy. A thread asks each server,
`DEJAVU_CACHE_REFRESH` seconds apart, what has changed of the records that this process has looked
up, and at once after a first look. No launch waits for it.
"""

import math
import time
import weakref
from collections.abc import Callable, Collection, Sequence
from threading import Thread

from ..errors import StoreError
from ..model.scenario import Context, Scenario
from ..settings import current_settings
from ..system.background_threads import Finisher, at_program_end, start_thread, uninterrupted
from ..system.fork_lock import ForkCondition, ForkLock
from ..system.notices import logger
from .base import CopyChanges, Store

MOST_SCENARIOS = 10_000
"""Largest number of a context's scenarios that one kernel's launches keep right."""

GATHER_SECONDS = 0.05
"""Time in which the first looks of several launches come together in one request."""

LAST_SECONDS = 0.25
"""Longest time for which a program's end waits for a revalidation, which may be its only one."""


class LocalCopies:
    """The records that one kernel's launches have looked up, in tiers of stores.

    After a local copy has changed, `changed` is called with its context.
    """

    def __init__(self, tiers: Sequence[Store], changed: Callable[[Context], None]) -> None:
        """Begin without records; the first one starts the thread."""
        self._local = [tier for tier in tiers if not (tier.remote or tier.read_only)]
        self.remote = [tier for tier in tiers if tier.remote]
        self._changed = changed
        self._lock = ForkLock()
        self._scenarios: dict[Context, set[Scenario]] = {}

    def watch(self, context: Context, scenario: Scenario) -> None:
        """Keep the copies of a record right from now on."""
        with self._lock:
            scenarios = self._scenarios.setdefault(context, set())
            is_new = scenario not in scenarios and len(scenarios) < MOST_SCENARIOS
            if is_new:
                scenarios.add(scenario)
        if is_new or not _revalidation.is_running:
            _revalidation.watch(self)

    def watched(self) -> dict[Context, set[Scenario]]:
        """Return the records to keep right."""
        with self._lock:
            return {context: set(scenarios) for context, scenarios in self._scenarios.items()}

    def apply(self, context: Context, changes: CopyChanges, source: Store) -> None:
        """Change the local copies as the records of a store have changed that keeps none itself."""
        if source.keeps_copies:
            self._changed(context)
            return
        scenarios = self.watched().get(context, set())
        before = [tier.revision(context) for tier in self._local]
        for tier in self._local:
            try:
                take_over(tier, context, scenarios, changes)
            except (StoreError, OSError) as error:
                logger.debug("copies in %s stay as they are: %s", tier.url, error)
        if before != [tier.revision(context) for tier in self._local]:
            self._changed(context)


def take_over(
    store: Store, context: Context, scenarios: Collection[Scenario], changes: CopyChanges
) -> None:
    """Remove recalled parts from a local store's records, and merge in those that have changed.

    Records of other scenarios stay, whatever has changed on the server.
    """
    recalled = {
        scenario: changes.recalls[scenario.digest]
        for scenario in scenarios
        if scenario.digest in changes.recalls
    }
    if recalled:
        store.recall(context, recalled)
    records = [record for record in changes.records if record.scenario in scenarios]
    if records:
        store.put(context, records)


class _Revalidation(Finisher):
    """Asks each server once for all kernels of the process, in a thread."""

    def __init__(self) -> None:
        self._condition = ForkCondition()
        self._all_copies: weakref.WeakSet[LocalCopies] = weakref.WeakSet()
        self._thread: Thread | None = None
        self._has_news = self._is_stopping = False
        self._refresh = math.inf

    @property
    def is_running(self) -> bool:
        """Whether the thread runs; that of its parent does not in a forked child."""
        return self._thread is not None and self._thread.is_alive()

    def watch(self, copies: LocalCopies) -> None:
        """Ask about a new record soon."""
        with self._condition:
            self._all_copies.add(copies)
            self._refresh, self._has_news = current_settings().refresh, True
            if not (self.is_running or self._is_stopping):
                self._thread = start_thread(self._turn, "dejavu-cache copies", in_turns=True)
            self._condition.notify_all()

    def finish(self, seconds: float) -> None:
        """End the thread, after a revalidation that is due."""
        with self._condition:
            self._is_stopping = True
            thread = self._thread
            self._condition.notify_all()
        if thread is not None:
            thread.join(min(seconds, LAST_SECONDS))

    def _turn(self) -> bool:
        """Wait until a revalidation is due, and ask; return False once the program ends."""
        with self._condition:
            self._condition.wait_for(lambda: self._has_news or self._is_stopping, self._refresh)
            is_due = self._has_news or not self._is_stopping
            self._has_news = False
        if is_due:
            time.sleep(GATHER_SECONDS)
            self._revalidate()
        return is_due

    def _revalidate(self) -> None:
        """Ask each remote tier for the changes of everything that was copied from it."""
        with self._condition:
            all_copies = list(self._all_copies)
        remote = {id(tier): tier for copies in all_copies for tier in copies.remote}
        for tier in remote.values():
            users = [copies for copies in all_copies if tier in copies.remote]
            wanted: dict[Context, set[Scenario]] = {}
            for copies in users:
                for context, scenarios in copies.watched().items():
                    wanted.setdefault(context, set()).update(scenarios)
            try:
                changes = tier.revalidate(wanted)
                for copies in users:
                    for context in copies.watched().keys() & changes.keys():
                        with uninterrupted():
                            copies.apply(context, changes[context], tier)
            except StoreError as error:
                logger.debug("%s does not revalidate copies: %s", tier.url, error)


_revalidation = _Revalidation()
at_program_end(_revalidation)
