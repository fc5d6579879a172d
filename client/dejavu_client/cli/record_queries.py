"""Questions that several commands ask about a store's records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from difflib import get_close_matches
from fnmatch import fnmatchcase

from dejavu_cache.errors import SettingsError
from dejavu_cache.model.record import Measurement, Record, RecordSet
from dejavu_cache.model.scenario import Context, canonical_json
from dejavu_cache.model.selection import winner
from dejavu_cache.stores import Store

from .conditions import parse_conditions, scenario_values
from .errors import NothingFoundError

__all__ = [
    "context_matches",
    "contexts_of",
    "kernel_matches",
    "kernels_of",
    "last_measured",
    "matching_kernels",
    "matching_records",
    "newest_record_sets",
    "record_sets_of",
    "winning_measurement",
]


def kernel_matches(name: str, pattern: str) -> bool:
    """Return whether a kernel's name is the pattern or ends with it, by whole components.

    Args:
        name: the kernel's module and qualified name.
        pattern: a name, the end of one, or a glob such as `*attention*`; empty matches all.
    """
    if not pattern:
        return True
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}")


def matching_kernels(names: Iterable[str], pattern: str, url: str) -> list[str]:
    """Return the kernels that a pattern names, sorted; an exact name matches no other kernel.

    Args:
        names: all kernels.
        pattern: as for `kernel_matches`.
        url: where the kernels are, for the error message.

    Raises:
        NothingFoundError: no kernel matches; the message suggests similar names.
    """
    names = sorted(set(names))
    if pattern in names:
        return [pattern]
    matches = [name for name in names if kernel_matches(name, pattern)]
    if not matches:
        raise NothingFoundError(_explain_no_kernel(names, pattern, url))
    return matches


def _explain_no_kernel(names: list[str], pattern: str, url: str) -> str:
    if not names:
        return f"{url} holds no records"
    ends = {name.rpartition(".")[2]: name for name in names}
    candidates = [*names, *ends]
    close = get_close_matches(pattern.strip("*"), candidates, n=3, cutoff=0.6)
    close += [name for end, name in ends.items() if pattern.strip("*").lower() in name.lower()]
    suggestions = list(dict.fromkeys(ends.get(name, name) for name in close))[:3]
    remedy = (
        f"did you mean {' or '.join(suggestions)}?"
        if suggestions
        else "`dejavu-cache ls` lists the kernels"
    )
    return f"{url} has no kernel {pattern!r}; {remedy}"


def kernels_of(store: Store, pattern: str) -> list[str]:
    """Return the kernels of a store that a pattern names, or raise `NothingFoundError`."""
    names = (context.kernel.name for context in store.contexts())
    return matching_kernels(names, pattern, store.url)


def contexts_of(store: Store, pattern: str) -> list[Context]:
    """Return the contexts of the kernels that a pattern names, or raise `NothingFoundError`."""
    contexts = list(store.contexts())
    names = matching_kernels((context.kernel.name for context in contexts), pattern, store.url)
    return [context for context in contexts if context.kernel.name in names]


def record_sets_of(store: Store, pattern: str) -> Iterator[RecordSet]:
    """Yield the records of the kernels that a pattern names, or raise `NothingFoundError`."""
    for context in contexts_of(store, pattern):
        yield RecordSet(context=context, records=tuple(store.records(context)))


def context_matches(context: Context, kernel: str, device: str, triton: str) -> bool:
    """Return whether a context passes the filters of a command; an empty filter passes all.

    Args:
        context: the context.
        kernel: as for `kernel_matches`.
        device: part of the GPU's name, in any case.
        triton: the version of Triton.
    """
    return (
        kernel_matches(context.kernel.name, kernel)
        and device.lower() in context.environment.device.name.lower()
        and triton in ("", context.environment.triton)
    )


def matching_records(
    store: Store, kernel: str, conditions: Sequence[str], device: str = ""
) -> list[tuple[Context, Record]]:
    """Return a kernel's records whose scenarios satisfy all conditions.

    Args:
        store: where to look.
        kernel: as for `kernel_matches`.
        conditions: the texts of `--scenario` and `--where`.
        device: part of the GPU's name, in any case.

    Raises:
        NothingFoundError: no kernel matches, or no scenario satisfies the conditions.
        SettingsError: a condition is about an argument that no scenario has.
    """
    parsed = parse_conditions(conditions)
    records = [
        (context, record)
        for context in contexts_of(store, kernel)
        if context_matches(context, "", device, "")
        for record in store.records(context)
    ]
    names = {name for _, record in records for name in scenario_values(record.scenario)}
    unknown = [condition.name for condition in parsed if condition.name not in names]
    if records and unknown:
        raise SettingsError(
            f"{', '.join(unknown)}: no such argument; scenarios have {', '.join(sorted(names))}"
        )
    matches = [
        (context, record)
        for context, record in records
        if all(condition.matches(record.scenario) for condition in parsed)
    ]
    if not matches:
        filters = [*conditions, *([f"a device {device!r}"] if device else [])]
        raise NothingFoundError(
            f"{store.url} has no scenario of {kernel} with {' and '.join(filters)}"
        )
    return matches


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
        kernel: as for `kernel_matches`.
        device: part of the GPU's name; empty for all.
        triton: the version of Triton; empty for all.

    Raises:
        NothingFoundError: no kernel matches, or none with the device and the version of Triton.
    """
    newest: dict[tuple[str, ...], tuple[datetime, RecordSet]] = {}
    contexts = contexts_of(store, kernel)
    chosen = [context for context in contexts if context_matches(context, "", device, triton)]
    if not chosen:
        filters = " and ".join(filter(None, (device, triton and f"Triton {triton}")))
        raise NothingFoundError(
            f"{store.url} has no records of {kernel or 'any kernel'} for {filters}"
        )
    for context in chosen:
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
