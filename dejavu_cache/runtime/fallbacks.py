"""What a launch runs without a usable record of its scenario."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from pydantic import ValidationError

from ..model.foreign_result import ForeignResult, ForeignTiming, version_order
from ..model.record import Measurement, Record, Winner
from ..model.resolution import How, Resolution
from ..model.scenario import Config, Difference, Scenario, differences, now
from ..triton_internals.cache_managers import disk_cache_key, launch_key
from .known_records import KnownRecords
from .request import Request
from .rules import trusted_choice

__all__ = [
    "FallbackLimits",
    "fall_back",
    "find_nearest",
    "nearest_differences",
    "record_of_triton_timings",
]

_TRITON_METHOD = "events-cold"
"""The method of `triton.testing.do_bench`, by which Triton's autotuner measures."""


@dataclass(frozen=True)
class FallbackLimits:
    """How different from a launch the records and trees may be that stand in for it.

    Attributes:
        max_distance: of a nearest scenario, in powers of two summed over the key arguments.
        other_toolchains: whether records of another Triton or code generator may serve.
        other_gpus: whether records and trees of another GPU of the same architecture may serve.
        uncompared: whether a record may serve whose winner nobody has compared.
    """

    max_distance: float
    other_toolchains: bool
    other_gpus: bool
    uncompared: bool


def fall_back(request: Request, records: KnownRecords, limits: FallbackLimits) -> Resolution:
    """Return a config and its provenance, from the most to the least trustworthy.

    It is the first of these that there is, and that the limits allow:

    1. `toolchain`: the scenario's record made with another Triton or code generator;
    2. `imported`: what another autotuner measured as the best;
    3. `nearest`: the winner of the nearest recorded scenario;
    4. `tree`: the choice of a decision tree fitted on this GPU;
    5. `family`: the scenario's record made on another GPU of the same architecture;
    6. `tree`: the choice of a decision tree fitted on such a GPU;
    7. `default`: the default config.
    """
    answers = _answers(request, records, limits)
    found = next((answer for answer in answers if answer is not None), None)
    return found or request.resolution("default", request.default)


def _answers(
    request: Request, records: KnownRecords, limits: FallbackLimits
) -> Iterator[Resolution | None]:
    """Yield what each fallback but the default answers, in the order of `fall_back`."""
    if limits.other_toolchains:
        toolchain = ("environment.triton", "environment.codegen")
        yield _record_elsewhere(request, records, limits, "toolchain", toolchain)
    yield _imported_result(request, records, loose=limits.other_toolchains)
    yield _nearest_scenario(request, records, limits)
    yield _tree_choice(request, records, other_gpus=False)
    if limits.other_gpus:
        yield _record_elsewhere(request, records, limits, "family", ("environment.device",))
        yield _tree_choice(request, records, other_gpus=True)


def _record_elsewhere(
    request: Request,
    records: KnownRecords,
    limits: FallbackLimits,
    how: How,
    may_differ: tuple[str, ...],
) -> Resolution | None:
    """Return the scenario's record from a context that differs in the named fields alone."""
    for context in records.other_contexts(request.context):
        differing = differences(request.context.model_dump(), context.model_dump())
        same_arch = context.environment.device.arch == request.context.environment.device.arch
        if not same_arch or not all(field.field.startswith(may_differ) for field in differing):
            continue
        found = records.tiers.get(context, request.scenario)
        resolution = trusted_choice(request, found, uncompared=limits.uncompared)
        if resolution is not None:
            return replace(resolution, how=how, differences=differing, recorded_in=context)
    return None


def _nearest_scenario(
    request: Request, records: KnownRecords, limits: FallbackLimits
) -> Resolution | None:
    """Return the winner of the nearest recorded scenario within the maximal distance."""
    candidates = records.neighbours(request.context).near(
        request.scenario, exact=request.exact, max_distance=limits.max_distance
    )
    for distance, text in candidates:
        scenario = _parse_scenario(text)
        if scenario is None:
            continue
        found = records.tiers.get(request.context, scenario)
        resolution = trusted_choice(request, found, uncompared=limits.uncompared)
        if resolution is not None:
            return replace(
                resolution,
                how="nearest",
                distance=distance,
                recorded_for=scenario,
                differences=differences(request.scenario.model_dump(), scenario.model_dump()),
            )
    return None


def _tree_choice(request: Request, records: KnownRecords, *, other_gpus: bool) -> Resolution | None:
    """Return the first declared config that a decision tree ranks for a request."""
    device = request.context.environment.device
    for tree, url in records.trees(request.context):
        fitted_on = tree.context.environment.device
        if fitted_on != device and not (other_gpus and fitted_on.arch == device.arch):
            continue
        for config in tree.rank(request.scenario.values):
            if config in request.declared:
                differing = differences(request.context.model_dump(), tree.context.model_dump())
                choice = request.resolution("tree", request.declared[config], url)
                return replace(choice, differences=differing)
    return None


def find_nearest(request: Request, records: KnownRecords) -> tuple[float, str] | None:
    """Return the distance and the text of the nearest other scenario with a record, or None."""
    candidates = records.neighbours(request.context).near(request.scenario)
    return next((near for near in candidates if near[1] != request.scenario.text), None)


def nearest_differences(request: Request, records: KnownRecords) -> Sequence[Difference]:
    """Return the fields that set the nearest record apart from a request.

    The nearest record is looked for in the request's own context first, and else in the context
    that differs in the fewest fields. Without any record of the kernel there are no differences.
    """
    near = find_nearest(request, records)
    nearest = None if near is None else _parse_scenario(near[1])
    if nearest is not None:
        return differences(request.scenario.model_dump(), nearest.model_dump())
    by_context = [
        differences(request.context.model_dump(), context.model_dump())
        for context in records.other_contexts(request.context)
    ]
    return min(by_context, key=len, default=[])


def _parse_scenario(text: str) -> Scenario | None:
    """Return a scenario from a store, or None if its text is damaged."""
    try:
        return Scenario.model_validate_json(text)
    except ValidationError:
        return None


def _imported_result(request: Request, records: KnownRecords, *, loose: bool) -> Resolution | None:
    """Return the declared config that another autotuner found best for a launch, or None.

    Args:
        request: the launch's.
        records: the results of other autotuners are among them.
        loose: whether results of other versions of Triton may serve, if there are none of its own.
    """
    results = records.imports(request.context)
    matching = _matching_results(request, results)
    if loose and not matching:
        matching = _matching_results(request, results, loose=True)
        # The newest version's first; results that do not name their version come last.
        matching.sort(key=lambda result: version_order(result.triton), reverse=True)
    for result in matching:
        for config in request.declared:
            if result.timings[0].means(config):
                return request.resolution("imported", request.declared[config], result.origin)
    return None


def record_of_triton_timings(request: Request, records: KnownRecords) -> Record | None:
    """Return Triton's own timings of a launch as a record, or None without any.

    Only timings whose cache key in Triton's disk cache proves that kernel, configs and compiler are
    those of the launch count, and only where the launch's method is Triton's.
    """
    if request.context.problem.method != _TRITON_METHOD:
        return None
    measurements: dict[Config, Measurement] = {}
    for config, timing in _proven_timings(request, records.imports(request.context)):
        quantiles = timing.model_dump(include={"median", "p20", "p80"})
        measurements.setdefault(
            config, Measurement(config=config, at=now(), by="Triton's disk cache", **quantiles)
        )
    if not measurements:
        return None
    # Triton stores timings when its tune has finished, so a winner is due at once.
    best = min(measurements.values(), key=lambda measurement: measurement.median or 0.0)
    return Record(
        scenario=request.scenario,
        winner=Winner(config=best.config, at=now()),
        measurements=tuple(measurements.values()),
    )


def _proven_timings(
    request: Request, results: Sequence[ForeignResult]
) -> Iterator[tuple[Config, ForeignTiming]]:
    candidates = [result for result in _matching_results(request, results) if result.proof]
    if not candidates:
        return
    try:
        configs = [request.declared[config] for config in request.declared]
        key = launch_key(request.autotuner, request.args, request.kwargs)
        cache_key = disk_cache_key(request.autotuner.fn, key, configs)
    except OSError:  # the compiler's version cannot be read, so nothing can be proven
        return
    for result in candidates:
        for timing, config in product(result.timings, request.declared):
            if result.proof == cache_key and timing.median is not None and timing.means(config):
                yield config, timing


def _matching_results(
    request: Request, results: Sequence[ForeignResult], *, loose: bool = False
) -> list[ForeignResult]:
    """Return the results for a launch's key and device, with exact or with bucketed key values."""
    if not results:
        return []
    environment = request.context.environment
    arguments = {**request.autotuner.nargs, **request.kwargs, **request.scenario.args}
    values = {
        name: str(value)
        for name, value in arguments.items()
        if isinstance(value, (int, float, str))
    }
    keys = [_key_text(request, {}), _key_text(request, request.scenario.args)]
    return [
        result
        for result in results
        if result.fits(keys, values, environment.device.name, environment.triton, loose=loose)
    ]


def _key_text(request: Request, bucketed: Mapping[str, Any]) -> list[str]:
    key = launch_key(request.autotuner, request.args, request.kwargs, bucketed)
    return [str(value) for value in key]
