"""A local journal of the measurements that a sweep has not yet handed to its store."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from ..errors import ReadOnlyStoreError, StoreError
from ..model.merge import merge_records
from ..model.record import Record
from ..model.scenario import Context, Scenario
from ..stores import FileStore, Found, Store, TieredStore, open_store, tiers_of
from ..system.notices import warn_once
from ..system.safe_files import user_folder

BRIEFLY = 5.0
"""Seconds to wait for another process that hands a scenario's record over."""


class Journal(TieredStore):
    """The tiers of a store behind a journal: it writes records to a folder on the local disk first.

    Sweeps of this user into one store share the folder, which is a store itself. `put` returns when
    its records are there. They are handed over when the scenario's lease ends, so that a large
    file, or a slow server, is written once per scenario. Records that the store does not accept
    stay: the next sweep into it hands them over, and so does `dejavu-cache import`.

    Where the folder cannot be written, `put` hands its records to the store at once. The folder
    outlasts every killed process. A loss of power may take the last measurements, which are then
    made again: waiting for the disk at each of them would take a tenth of a short sweep.

    Args:
        home: the store that the records are for.
        folder: the folder; by default the store's own in the user's cache.
    """

    def __init__(self, home: Store, folder: Path | None = None) -> None:
        """Hand over what ended sweeps have left."""
        super().__init__(tiers_of(home))
        self.read_only = self.remote = False  # what is put goes to the folder
        digest = hashlib.sha256(home.url.encode()).hexdigest()[:16]
        self.local = FileStore(folder or user_folder("sweeps") / digest, durable=False)
        self.hand_over()

    def get(self, context: Context, scenario: Scenario, *, fresh: bool = False) -> Found | None:
        """Return the store's record merged with the one that it has not accepted yet."""
        pending = self.local.get(context, scenario, fresh=True)
        stored = super().get(context, scenario, fresh=fresh)
        if pending is None:
            return stored
        merged = merge_records(pending.record, stored.record) if stored else pending.record
        return Found(merged, self.url)

    def put(self, context: Context, records: Iterable[Record], *, now: bool = False) -> None:
        """Write records to the folder.

        Raises:
            StoreError: neither the folder nor the store can be written.
        """
        records = tuple(records)
        try:
            self.local.put(context, records)
        except (StoreError, OSError) as error:
            warn_once(self.local.url, f"{error}; measurements go to {self.url} one by one instead")
            self._put_home(context, records)

    def _put_home(self, context: Context, records: Sequence[Record]) -> None:
        if not self.writable:
            raise ReadOnlyStoreError(f"{self.url} is open for reading only")
        super().put(context, records, now=True)

    @contextmanager
    def lease(self, context: Context, scenario: Scenario, *, wait: float) -> Iterator[bool]:
        """Take the store's lease, and hand the scenario's record over before it ends.

        The folder's own lease tells sweeps on this machine that the record is not left behind: a
        server may keep a dead process's lease for a while, or may be away.
        """
        with super().lease(context, scenario, wait=wait) as acquired:
            if not acquired:
                yield False
                return
            with self.local.lease(context, scenario, wait=BRIEFLY) as is_alone:
                try:
                    yield is_alone
                finally:
                    if is_alone:
                        self._hand_over(context, scenario)

    def hand_over(self) -> bool:
        """Hand all records to the store; return whether it takes all of them.

        A scenario whose lease a process holds is left to it: it will hand it over.
        """
        takes_all = True
        for context in self.local.contexts():
            for record in [*self.local.records(context)]:
                with self.local.lease(context, record.scenario, wait=0.0) as acquired:
                    if acquired:
                        takes_all &= self._hand_over(context, record.scenario)
        return takes_all

    def _hand_over(self, context: Context, scenario: Scenario) -> bool:
        """Hand a record to the store, under its lease, and return whether the store takes it."""
        try:
            if pending := self.local.get(context, scenario, fresh=True):
                self._put_home(context, [pending.record])
                self.local.delete(context, [scenario])
        except (StoreError, OSError) as error:
            warn_once(
                f"journal {self.url}",
                f"{self.url} is away ({error}): measurements are kept in {self.local.root} until "
                "it accepts them",
            )
            return False
        return True


def hand_over_what_is_left(url: str) -> list[str]:
    """Hand to a store what sweeps of this user left; return the folder if some of it stays."""
    with closing(Journal(open_store(url))) as journal:
        return [] if journal.hand_over() else [str(journal.local.root)]
