"""Copies of records into a store, counted by what the store has acknowledged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dejavu_cache.errors import NewerFormatError, ReadOnlyStoreError, StoreError
from dejavu_cache.model.merge import merge_records
from dejavu_cache.model.record import Record, RecordSet
from dejavu_cache.model.scenario import Config, Context
from dejavu_cache.stores import Store
from dejavu_cache.system.notices import Progress, counted

from .errors import PartlyDoneError
from .output import note, say, show_progress

__all__ = ["merge_acknowledged"]

NAMED_FAILURES = 20
"""Contexts that an error names one by one."""


_PASSED_OVER = "the server had deleted or replaced them, or their timings cannot be true"


@dataclass
class CopyReport:
    """Counts of the records that a store acknowledged, and those that it did not take."""

    added: int = 0
    unchanged: int = 0
    missing: dict[str, int] = field(default_factory=dict)
    """Records that were not acknowledged, by their kernel, GPU and the reason."""
    passed_over: int = 0
    """Records that a server answered and does not have."""
    error: StoreError | None = None
    """The first error."""

    def add_missing(self, record_set: RecordSet, error: StoreError | None) -> None:
        """Count a record set that is not there, or not known to be; None if it was not tried."""
        context = record_set.context
        reason = f": {error}" if error else ", not tried"
        key = f"{context.kernel.name} on {context.environment.device.name}{reason}"
        self.missing[key] = self.missing.get(key, 0) + len(record_set.records)
        self.error = self.error or error


def merge_acknowledged(
    record_sets: Iterable[RecordSet],
    store: Store,
    *,
    must_take_all: bool = True,
) -> None:
    """Merge record sets into a store, and print how many records it acknowledged.

    A record set that is refused for its content is passed over, and so is one that the store has in
    a newer format; any other error ends the copy.

    Args:
        record_sets: what to copy.
        store: where to.
        must_take_all: whether it is an error that a server passes over records, because they were
            deleted or replaced there; otherwise they are only counted.

    Raises:
        StoreError: the store took nothing, for the reason in the message.
        PartlyDoneError: it took some of the records; the message names the others.
        KeyboardInterrupt: the user ended it, after a note on what is there.
    """
    show_progress()
    report, progress = CopyReport(), Progress(f"copying to {store.url}")
    stopped = False
    for record_set in record_sets:
        if stopped:
            report.add_missing(record_set, None)
            continue
        try:
            _merge_set(record_set, store, report)
            progress.show(f"{report.added} new, {report.unchanged} known")
        except StoreError as error:
            report.add_missing(record_set, error)
            of_one_set = getattr(error, "status", None) in (400, 413, 422)
            stopped = not (of_one_set or isinstance(error, NewerFormatError))
        except KeyboardInterrupt:
            note(
                f"only {report.added} new, {report.unchanged} known in {store.url}; the next "
                "may be there too: repeat the command to copy the rest"
            )
            raise
    say(f"{report.added} new, {report.unchanged} known in {store.url}")
    if report.passed_over:
        records = counted(report.passed_over, "record was", "records were")
        text = f"{records} passed over: {_PASSED_OVER}"
        if must_take_all and report.error is None:
            raise PartlyDoneError(text)
        say(text)
    if report.error is not None:
        raise _failure(report, store)


def _merge_set(record_set: RecordSet, store: Store, report: CopyReport) -> None:
    before = {record.scenario: record for record in store.records(record_set.context)}
    store.put(record_set.context, record_set.records, now=True)
    acknowledged = record_set.records
    if store.remote:
        acknowledged = _acknowledged_records(record_set, store, report)
        pins = [
            record for record in acknowledged if _needs_pin(before.get(record.scenario), record)
        ]
        _set_pins(record_set.context, pins, store, report)
    new = sum(_adds(before.get(record.scenario), record, store) for record in acknowledged)
    report.added += new
    report.unchanged += len(acknowledged) - new


def _acknowledged_records(
    record_set: RecordSet, store: Store, report: CopyReport
) -> tuple[Record, ...]:
    """Return the records that a server has now, and count the others.

    A server confirms a request as a whole. It passes over what was deleted or replaced there, and
    what cannot be a measurement.
    """
    now = {record.scenario: record.by_config.keys() for record in store.records(record_set.context)}
    acknowledged = tuple(
        record
        for record in record_set.records
        if record.scenario in now and _storable_configs(record) <= now[record.scenario]
    )
    report.passed_over += len(record_set.records) - len(acknowledged)
    return acknowledged


def _storable_configs(record: Record) -> set[Config]:
    """Return the configs whose measurements a server stores: not those that were skipped."""
    return {measurement.config for measurement in record.measurements if not measurement.skipped}


def _set_pins(context: Context, records: list[Record], store: Store, report: CopyReport) -> None:
    """Set pins one by one; servers take them apart from measurements, and only from admins."""
    for record in records:
        try:
            store.put(context, [Record(scenario=record.scenario, pin=record.pin)])
        except StoreError as error:
            key = f"the pin of {context.kernel.name}{record.scenario}: {error}"
            report.missing[key] = 1
            report.error = report.error or error
            return


def _adds(before: Record | None, record: Record, store: Store) -> bool:
    """Return whether a record added anything to what the store had."""
    if before is None:
        return True
    if store.remote:  # a server keeps the first measurement of a config
        return not _storable_configs(record) <= before.by_config.keys()
    return merge_records(before, record) != before


def _needs_pin(before: Record | None, record: Record) -> bool:
    if record.pin is None:
        return False
    earlier = before.pin if before else None
    if earlier is None:
        return record.pin.config is not None
    return record.pin.config != earlier.config and record.pin.at > earlier.at


def _failure(report: CopyReport, store: Store) -> Exception:
    assert report.error is not None
    lines = [f"{count} of {reason}" for reason, count in report.missing.items()]
    if len(lines) > NAMED_FAILURES:
        lines = [*lines[:NAMED_FAILURES], f"and {len(lines) - NAMED_FAILURES} more"]
    separator = "\n  " if len(lines) > 1 else " "
    count = sum(report.missing.values())
    text = (
        f"{counted(count, 'record is', 'records are')} not known to be in {store.url}:{separator}"
    )
    text += separator.join(lines)
    if isinstance(report.error, ReadOnlyStoreError):
        return ReadOnlyStoreError(text)
    if report.added or report.unchanged:
        return PartlyDoneError(text)
    failure = StoreError(text)
    failure.exit_code = report.error.exit_code
    return failure
