"""Copies of records into a store, counted by what the store has acknowledged."""

import re
from collections import Counter
from collections.abc import Iterable

from dejavu_cache.errors import NewerFormatError, ReadOnlyStoreError, StoreError
from dejavu_cache.model.merge import merge_records
from dejavu_cache.model.record import Record, RecordSet
from dejavu_cache.model.scenario import Context, Scenario
from dejavu_cache.stores import Store
from dejavu_cache.system.notices import Progress, counted

from .errors import PartlyDoneError
from .output import note, say, show_progress

NAMED_FAILURES = 20
"""Failures that an error names one by one."""


def merge_acknowledged(
    record_sets: Iterable[RecordSet], store: Store, *, must_take_all: bool = True
) -> None:
    """Merge record sets into a store, and print how many records it acknowledged.

    A record set that is refused for its content is passed over, and so is one that the store has in
    a newer format; any other error ends the copy. A server passes over records that were deleted or
    replaced there: that is an error where it must take all, and else they are counted.

    Raises:
        StoreError: the store took nothing, for the reason in the message.
        PartlyDoneError: it took some of the records; the message names the others.
        KeyboardInterrupt: the user ended it, after a note on what is there.
    """
    show_progress()
    copy, progress = _Copy(store), Progress(f"copying to {store.url}")
    try:
        for record_set in record_sets:
            copy.merge(record_set)
            progress.show(copy.amounts)
    except KeyboardInterrupt:
        note(
            f"only {copy.amounts} in {store.url}; the next may be there too: repeat the command to "
            "copy the rest"
        )
        raise
    say(f"{copy.amounts} in {store.url}")
    if copy.passed_over:
        records = counted(copy.passed_over, "record was", "records were")
        text = (
            f"{records} passed over: the server had deleted or replaced them, or their timings "
            "cannot be true"
        )
        if must_take_all and copy.error is None:
            raise PartlyDoneError(text)
        say(text)
    copy.raise_failure()


class _Copy:
    """A copy of record sets into a store.

    Attributes:
        passed_over: how many records a server confirmed with their request and does not have.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._new = self._known = self.passed_over = 0
        self._missing: Counter[str] = Counter()
        self._is_stopped = False
        self.error: StoreError | None = None

    @property
    def amounts(self) -> str:
        """How many records the store acknowledged."""
        return f"{self._new} new, {self._known} known"

    def merge(self, record_set: RecordSet) -> None:
        """Merge a record set, unless an earlier error ended the copy, and count its records."""
        context, count = record_set.context, len(record_set.records)
        place = f"{context.kernel.name} on {context.environment.device.name}"
        if self._is_stopped:
            self._missing[f"{place}, not tried"] += count
            return
        try:
            self._put(context, record_set.records)
        except StoreError as error:
            self._note_failure(f"{place}: {error}", count, error)
            is_of_one_set = getattr(error, "status", None) in (400, 413, 422)
            self._is_stopped = not (is_of_one_set or isinstance(error, NewerFormatError))

    def _put(self, context: Context, records: tuple[Record, ...]) -> None:
        before = self._records(context)
        self._store.put(context, records, now=True)
        if self._store.remote:
            # A server confirms a request as a whole. It passes over what was deleted or replaced
            # there, and what cannot be a measurement.
            after, sent = self._records(context), len(records)
            records = tuple(record for record in records if _has(after, record))
            self.passed_over += sent - len(records)
            self._set_pins(context, [record for record in records if _pins(before, record)])
            # It keeps the first measurement of a config.
            known = sum(_has(before, record) for record in records)
        else:
            known = sum(_merge(before, record) == before.get(record.scenario) for record in records)
        self._known += known
        self._new += len(records) - known

    def _records(self, context: Context) -> dict[Scenario, Record]:
        return {record.scenario: record for record in self._store.records(context)}

    def _set_pins(self, context: Context, records: list[Record]) -> None:
        """Set pins one by one; servers take them apart from measurements, and only from admins."""
        for record in records:
            try:
                self._store.put(context, [Record(scenario=record.scenario, pin=record.pin)])
            except StoreError as error:
                place = f"the pin of {context.kernel.name}{record.scenario}"
                self._note_failure(f"{place}: {error}", 1, error)
                return

    def _note_failure(self, text: str, count: int, error: StoreError) -> None:
        self._missing[text] += count
        self.error = self.error or error

    def raise_failure(self) -> None:
        """Raise an error that names what is not known to be in the store, if there is any."""
        if self.error is None:
            return
        lines = [f"{count} of {reason}" for reason, count in self._missing.items()]
        if len(lines) > NAMED_FAILURES:
            lines = [*lines[:NAMED_FAILURES], f"and {len(lines) - NAMED_FAILURES} more"]
        separator = "\n  " if len(lines) > 1 else " "
        records = counted(self._missing.total(), "record is", "records are")
        text = f"{records} not known to be in {self._store.url}:{separator}{separator.join(lines)}"
        if isinstance(self.error, ReadOnlyStoreError):
            raise ReadOnlyStoreError(text)
        if self._new or self._known:
            raise PartlyDoneError(text)
        failure = StoreError(text)
        failure.exit_code = self.error.exit_code
        raise failure


def _has(records: dict[Scenario, Record], record: Record) -> bool:
    """Return whether records have all of a record that a server stores: not what was skipped."""
    known = records.get(record.scenario)
    stored = {measured.config for measured in record.measurements if not measured.skipped}
    return known is not None and stored <= known.by_config.keys()


def _merge(before: dict[Scenario, Record], record: Record) -> Record:
    known = before.get(record.scenario)
    return record if known is None else merge_records(known, record)


def _pins(before: dict[Scenario, Record], record: Record) -> bool:
    """Return whether a record's pin is another than the one that stands."""
    known = before.get(record.scenario)
    return _merge(before, record).pinned != (known.pinned if known else None)


_NAMES = re.compile(r"\S*[/\\@]\S*")
"""Words of an error that may name a user, a host or a folder."""


def for_strangers(record: Record) -> Record:
    """Return a record without names of users, hosts and folders, and without its team's pin."""
    values = record.model_dump(exclude={"pin"})
    verdicts = ((values["winner"] or {}).get("results") or {}).values()
    for measured in values["measurements"]:
        measured["by"] = ""
    failures = [measured["failure"] for measured in values["measurements"] if measured["failure"]]
    for part in (*failures, *verdicts):
        part["reason"] = _NAMES.sub("…", part["reason"])
    return Record.model_validate(values)
