"""The config that a recorded scenario gives a launch."""

from __future__ import annotations

import math

from ..model.record import Measurement, Record
from ..model.resolution import Resolution
from ..model.scenario import Config
from ..model.selection import trusted_configs, winner
from ..stores import Found
from ..system.notices import warn_once, whoami
from ..triton_internals.config_names import describe
from .request import Request

__all__ = [
    "best_config",
    "ignored_pin",
    "is_trusted",
    "is_unfinished",
    "note_timings",
    "resolve_from_record",
    "resolve_trusted",
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
    pinned, ignored = record.pinned, ignored_pin(request, found)
    if ignored is not None:
        _warn_of_ignored_pin(request, ignored)
    elif pinned is not None:
        return request.resolution("pinned", request.declared[pinned], store=found.store)
    best = best_config(request, record)
    return None if best is None else _resolve_to(request, found, best)


def resolve_trusted(
    request: Request, found: Found | None, *, uncompared: bool = False
) -> Resolution | None:
    """Return the resolution from a record to a config that runs without a comparison, or None.

    It is the first of these, where results are to be compared at all:

    1. a person's choice;
    2. the fastest config, if `selection.trusted_configs` has it;
    3. of the trusted ones the fastest, if the winner is among them;
    4. if nothing can be compared: the fastest one that the winner's tune did not know.

    Args:
        request: the scenario in question.
        found: a record of this scenario or of one that may stand in for it.
        uncompared: whether a winner may run that nobody has compared, labelled as such.
    """
    leader = resolve_from_record(request, found)
    if leader is None or found is None or leader.how == "pinned" or request.check is None:
        return leader
    record, fastest = found.record, describe(leader.config)
    if record.winner is None or not record.is_finished:
        return None
    trusted = trusted_configs(record, describe(request.default), uncompared=uncompared)
    if fastest in trusted:
        return leader
    is_declared = record.winner.config in request.declared
    if uncompared and not (is_declared and record.by_config[fastest].at <= record.winner.at):
        return leader
    if not is_declared or record.winner.config not in trusted:
        return None
    best = _select(request, record, trusted)
    return None if best is None else _resolve_to(request, found, best)


def is_trusted(request: Request, record: Record, config: Config) -> bool:
    """Return whether a launch may run a recorded config without comparing its results."""
    return request.check is None or config in trusted_configs(record, describe(request.default))


def is_unfinished(request: Request, found: Found | None) -> bool:
    """Return whether a record has timings alone, while results are to be compared."""
    return found is not None and request.check is not None and found.record.is_unfinished


def _resolve_to(request: Request, found: Found, config: Config) -> Resolution:
    record, ignored = found.record, ignored_pin(request, found)
    return request.resolution(
        "exact",
        request.declared[config],
        store=found.store,
        missing=len(request.unmeasured_configs(record)),
        not_compared=_not_compared(request, record, config),
        wrong=_wrong_configs(request, record),
        ignored_pin=None if ignored is None else str(ignored),
    )


def _not_compared(request: Request, record: Record, config: Config) -> list[str]:
    """Return which results of a recorded config were not compared, and why."""
    is_standard = request.check is None or config == describe(request.default)
    return [] if is_standard else record.reasons_not_compared(config)


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
    Where results are compared, those of the configs that were left out were not.
    """
    if not request.prunes:
        return best
    rivals = {*request.declared, *map(describe, request.autotuner.configs)}
    if request.check is not None:
        rivals &= {best, record.winner.config if record.winner else best}
    return _select(request, record, rivals) or best
