"""The config that a recorded scenario gives a launch."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from ..model.record import Measurement, Record
from ..model.resolution import Resolution
from ..model.scenario import Config
from ..model.selection import winner
from ..stores import Found
from ..system.notices import warn_once
from ..system.provenance import whoami
from ..triton_internals.config_names import describe
from .request import Request

__all__ = [
    "best_config",
    "ignored_pin",
    "is_unfinished",
    "note_timings",
    "resolve_from_record",
    "resolve_if_compared",
    "winner_to_record",
]


def resolve_from_record(request: Request, found: Found | None) -> Resolution | None:
    """Return the resolution to a record's pin, or else to the best declared config, or None.

    A record only selects among the configs that the kernel declares today, whoever wrote it.

    Args:
        request: the scenario in question.
        found: a record of this scenario or of one that may stand in for it.
    """
    if found is None:
        return None
    record = found.record
    missing = len(request.unmeasured_configs(record))
    pinned, ignored = record.pinned, ignored_pin(request, found)
    if ignored is not None:
        _warn_of_ignored_pin(request, ignored)
    elif pinned is not None:
        return request.resolution("pinned", request.declared[pinned], store=found.store)
    best = best_config(request, record)
    if best is None:
        return None
    return request.resolution(
        "exact",
        request.declared[best],
        store=found.store,
        missing=missing,
        wrong=_wrong_configs(request, record),
        ignored_pin=None if ignored is None else str(ignored),
    )


def resolve_if_compared(request: Request, found: Found | None) -> Resolution | None:
    """Return the resolution from a record, unless its tune has not yet compared any results."""
    resolution = resolve_from_record(request, found)
    if resolution is None or found is None or resolution.how == "pinned":
        return resolution
    if is_unfinished(request, found):
        return None
    compared = _compared_leader(request, found.record, describe(resolution.config))
    return resolution if compared is None else replace(resolution, config=compared)


def _compared_leader(request: Request, record: Record, leader: Config) -> Any | None:
    """Return the declared config that runs in the place of a leader that nobody compared, or None.

    A config that was timed before the winner was selected, and is faster, was not declared where
    that was: it is of an interrupted tune of another version of the kernel, or of another store.
    """
    winner, default = record.winner, describe(request.default)
    if request.check is None or winner is None or winner.config not in request.declared:
        return None
    if leader in (winner.config, default) or record.by_config[leader].at > winner.at:
        return None
    best = _select(request, record, {winner.config, default})
    return None if best is None else request.declared[best]


def is_unfinished(request: Request, found: Found | None) -> bool:
    """Return whether a record has timings alone, while results are to be compared."""
    if found is None or request.check is None or found.record.is_finished:
        return False
    return bool(found.record.measurements)


def ignored_pin(request: Request, found: Found | None) -> Config | None:
    """Return a record's pin if the launch may not run its config, or None."""
    pinned = found.record.pinned if found else None
    return None if pinned is None or pinned in request.declared else pinned


def best_config(request: Request, record: Record) -> Config | None:
    """Return the fastest declared config by a record's timings, or None if none is believed."""
    return _select(request, record, set(request.declared))


def _select(request: Request, record: Record, declared: set[Config]) -> Config | None:
    return winner(
        record,
        declared,
        describe(request.default),
        shortest=request.shortest_timing,
        trusted=whoami(),
    )


def note_timings(request: Request, record: Record) -> None:
    """Give a request's autotuner Triton's `configs_timings`: infinite ones for failed configs."""
    measured = record.by_config
    request.autotuner.configs_timings = {
        request.declared[config]: _triton_timing(measured[config])
        for config in request.declared
        if config in measured
    }


def _triton_timing(measurement: Measurement) -> float | list[float | None]:
    """Return what `do_bench` returned for a config, or would have: a number, or quantiles."""
    if measurement.median is None:
        return [math.inf] * 3
    if measurement.p20 is None:
        return measurement.median
    return [measurement.median, measurement.p20, measurement.p80]


def _wrong_configs(request: Request, record: Record) -> list[str]:
    return [
        f"({measurement.config}): {measurement.failure.reason}"
        for measurement in record.measurements
        if measurement.is_wrong and measurement.failure and measurement.config in request.declared
    ]


def _warn_of_ignored_pin(request: Request, pinned: Config) -> None:
    kernel = request.context.kernel.name
    if pinned in map(describe, request.autotuner.configs):
        problem, remedy = "is pruned from this launch or fails here", "pin another config"
    else:
        problem, remedy = "the kernel does not declare", "declare this config"
    warn_once(
        f"pin {kernel} {pinned}",
        f"{kernel}{request.scenario} is pinned to ({pinned}), which {problem}: the pin is ignored; "
        f"{remedy}, or unpin the scenario",
    )


def winner_to_record(request: Request, record: Record, best: Config) -> Config:
    """Return the winner to record after a tune whose best config is `best`.

    Pruning may have left the earlier winner out of the tuned launch; it stands if it is faster.
    Where results are compared, that of others that were left out were not.
    """
    if not request.prunes:
        return best
    rivals = {*request.declared, *map(describe, request.autotuner.configs)}
    if request.check is not None:
        rivals &= {best, record.winner.config if record.winner else best}
    return _select(request, record, rivals) or best
