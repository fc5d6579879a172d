"""Questions that several commands ask about a store's records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from dejavu_cache.model.record import Measurement, Record, RecordSet
from dejavu_cache.model.scenario import Context, Scenario, canonical_json
from dejavu_cache.model.selection import winner
from dejavu_cache.stores import Store

from .options import parse_assignments

__all__ = [
    "context_matches",
    "kernel_matches",
    "last_measured",
    "matching_records",
    "newest_record_sets",
    "winning_measurement",
]


def kernel_matches(context: Context, kernel: str) -> bool:
    """Return whether a context's kernel has this name, or a name that ends with it."""
    return context.kernel.name == kernel or context.kernel.name.endswith(f".{kernel}")


def context_matches(context: Context, kernel: str, device: str, triton: str) -> bool:
    """Return whether a context passes the filters of a command; an empty filter passes all.

    Args:
        context: the context.
        kernel: the kernel's name, or the end of it.
        device: part of the GPU's name, in any case.
        triton: the version of Triton.
    """
    return (
        (not kernel or kernel_matches(context, kernel))
        and device.lower() in context.environment.device.name.lower()
        and triton in ("", context.environment.triton)
    )


def matching_records(
    store: Store, kernel: str, assignments: Iterable[str] | None
) -> list[tuple[Context, Record]]:
    """Return a kernel's records whose scenarios have the given values.

    Args:
        store: where to look.
        kernel: the kernel's name, or the end of it.
        assignments: the `NAME=VALUE` texts of `--scenario`.
    """
    values = parse_assignments(assignments, "--scenario")
    return [
        (context, record)
        for context in store.contexts()
        if kernel_matches(context, kernel)
        for record in store.records(context)
        if _has_values(record.scenario, values)
    ]


def winning_measurement(record: Record) -> Measurement | None:
    """Return the measurement of the pinned config or else of the best among all recorded ones."""
    config = record.pinned or winner(record, set(record.by_config))
    return record.by_config.get(config) if config else None


def last_measured(records: Iterable[Record]) -> datetime | None:
    """Return when the newest measurement of some records was made; None if there is none."""
    moments = (measurement.at for record in records for measurement in record.measurements)
    return max(moments, default=None)


def newest_record_sets(store: Store, kernel: str, device: str, triton: str) -> Iterator[RecordSet]:
    """Yield the records of each environment and problem that pass the filters.

    Of several versions of a kernel's code, only the one that was tuned last counts. Contexts
    without measurements, which only record launches, are left out.

    Args:
        store: where to look.
        kernel: the kernel's name, or the end of it; empty for all.
        device: part of the GPU's name; empty for all.
        triton: the version of Triton; empty for all.
    """
    newest: dict[tuple[str, ...], tuple[datetime, RecordSet]] = {}
    for context in store.contexts():
        if not context_matches(context, kernel, device, triton):
            continue
        record_set = RecordSet(context=context, records=tuple(store.records(context)))
        measured_at = last_measured(record_set.records)
        if measured_at is None:
            continue
        key = (
            context.kernel.name,
            canonical_json(context.environment),
            canonical_json(context.problem),
        )
        if key not in newest or measured_at > newest[key][0]:
            newest[key] = measured_at, record_set
    for _, record_set in newest.values():
        yield record_set


def _has_values(scenario: Scenario, values: dict[str, str]) -> bool:
    fields = {**scenario.dtypes, **scenario.args}
    return all(name in fields and str(fields[name]) == value for name, value in values.items())
