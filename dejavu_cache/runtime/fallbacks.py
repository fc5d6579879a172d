"""Fallbacks for a scenario without a usable record, from the most to the least trustworthy.

Match results imported from other autotuners against a launch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

from pydantic import ValidationError

from ..model.foreign_result import ForeignResult, ForeignTiming, version_order
from ..model.record import Measurement, Record, Winner
from ..model.resolution import How, Resolution
from ..model.scenario import Config, Difference, Scenario, differences, now
from ..triton_internals.cache_managers import disk_cache_key, launch_key
from .record_lookup import resolve_trusted
from .request import Request
from .tolerant_store import TolerantStore

__all__ = [
    "FALLBACKS",
    "FallbackLimits",
    "ForeignConfig",
    "fall_back",
    "find_foreign_config",
    "find_nearest",
    "nearest_differences",
    "record_from_triton_cache",
]


_TRITON_METHOD = "events-cold"
"""The method of `triton.testing.do_bench`, by which Triton's autotuner measures."""


class ForeignConfig(NamedTuple):
    """A declared config that another autotuner measured as the best.

    Attributes:
        config: the `triton.Config`.
        origin: the name of the autotuner.
    """

    config: Any
    origin: str


def record_from_triton_cache(request: Request, results: Sequence[ForeignResult]) -> Record | None:
    """Return Triton's own timings of a launch as a record, or None without any.

    Only timings whose cache key in Triton's disk cache proves that kernel, configs and compiler are
    those of the launch count, and only where the launch's method is Triton's.
    """
    if request.context.problem.method != _TRITON_METHOD:
        return None
    measurements: dict[Config, Measurement] = {}
    for config, timing in _proven_timings(request, results):
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


def find_foreign_config(
    request: Request, results: Sequence[ForeignResult], *, loose: bool = False
) -> ForeignConfig | None:
    """Return the declared config that another autotuner found best for a launch, or None.

    Args:
        request: the launch's.
        results: of other autotuners.
        loose: whether results of other versions of Triton may serve, if there are none of its own.
    """
    matching = _matching_results(request, results)
    if loose and not matching:
        matching = _matching_results(request, results, loose=True)
        # The newest version's first; results that do not name their version come last.
        matching.sort(key=lambda result: version_order(result.triton), reverse=True)
    for result in matching:
        for config in request.declared:
            if result.timings[0].means(config):
                return ForeignConfig(request.declared[config], result.origin)
    return None


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


Fallback = Callable[[Request, TolerantStore, FallbackLimits], Resolution | None]


def fall_back(request: Request, store: TolerantStore, limits: FallbackLimits) -> Resolution:
    """Return the answer of the first fallback that has one, at the latest the default config."""
    answers = (fallback(request, store, limits) for fallback in FALLBACKS)
    return next(resolution for resolution in answers if resolution is not None)


def use_other_toolchain(
    request: Request, store: TolerantStore, limits: FallbackLimits
) -> Resolution | None:
    """Return the scenario's record made with another Triton or code generator."""
    if not limits.other_toolchains:
        return None
    return _from_other_context(
        request,
        store,
        limits,
        "toolchain",
        may_differ=("environment.triton", "environment.codegen"),
    )


def use_imported_result(
    request: Request, store: TolerantStore, limits: FallbackLimits
) -> Resolution | None:
    """Return the config that another autotuner measured as the best."""
    results = store.imports(request.context)
    match = find_foreign_config(request, results, loose=limits.other_toolchains)
    return request.resolution("imported", match.config, store=match.origin) if match else None


def use_nearest_scenario(
    request: Request, store: TolerantStore, limits: FallbackLimits
) -> Resolution | None:
    """Return the winner of the nearest recorded scenario within the maximal distance."""
    candidates = store.scenarios(request.context).near(
        request.scenario, exact=request.exact, max_distance=limits.max_distance
    )
    for distance, text in candidates:
        scenario = _parse_scenario(text)
        if scenario is None:
            continue
        resolution = resolve_trusted(
            request, store.get(request.context, scenario), uncompared=limits.uncompared
        )
        if resolution is not None:
            return replace(
                resolution,
                how="nearest",
                distance=distance,
                recorded_for=scenario,
                differences=differences(request.scenario.model_dump(), scenario.model_dump()),
            )
    return None


def use_device_tree(
    request: Request, store: TolerantStore, limits: FallbackLimits
) -> Resolution | None:
    """Return the choice of a decision tree fitted on this GPU."""
    return _from_tree(request, store, other_gpus=False)


def use_gpu_family(
    request: Request, store: TolerantStore, limits: FallbackLimits
) -> Resolution | None:
    """Return the scenario's record made on another GPU of the same architecture."""
    if not limits.other_gpus:
        return None
    return _from_other_context(request, store, limits, "family", may_differ=("environment.device",))


def use_family_tree(
    request: Request, store: TolerantStore, limits: FallbackLimits
) -> Resolution | None:
    """Return the choice of a decision tree fitted on another GPU of the same architecture."""
    return _from_tree(request, store, other_gpus=True) if limits.other_gpus else None


def use_default(
    request: Request, store: TolerantStore, limits: FallbackLimits
) -> Resolution | None:
    """Return the default config."""
    return request.resolution("default", request.default)


FALLBACKS: tuple[Fallback, ...] = (
    use_other_toolchain,
    use_imported_result,
    use_nearest_scenario,
    use_device_tree,
    use_gpu_family,
    use_family_tree,
    use_default,
)
"""All fallbacks in the order in which they are asked."""


def find_nearest(request: Request, store: TolerantStore) -> tuple[float, str] | None:
    """Return the distance and the text of the nearest other scenario with a record, or None."""
    candidates = store.scenarios(request.context).near(request.scenario)
    return next((near for near in candidates if near[1] != request.scenario.text), None)


def nearest_differences(request: Request, store: TolerantStore) -> Sequence[Difference]:
    """Return the fields that set the nearest record apart from a request.

    The nearest record is looked for in the request's own context first, and else in the context
    that differs in the fewest fields. Without any record of the kernel there are no differences.
    """
    near = find_nearest(request, store)
    nearest = None if near is None else _parse_scenario(near[1])
    if nearest is not None:
        return differences(request.scenario.model_dump(), nearest.model_dump())
    by_context = [
        differences(request.context.model_dump(), context.model_dump())
        for context in store.other_contexts(request.context)
    ]
    return min(by_context, key=len, default=[])


def _parse_scenario(text: str) -> Scenario | None:
    """Return a scenario from a store, or None if its text is damaged."""
    try:
        return Scenario.model_validate_json(text)
    except ValidationError:
        return None


def _from_other_context(
    request: Request,
    store: TolerantStore,
    limits: FallbackLimits,
    how: How,
    may_differ: tuple[str, ...],
) -> Resolution | None:
    """Return the scenario's record from a context that differs in the named fields alone."""
    for context in store.other_contexts(request.context):
        differing = differences(request.context.model_dump(), context.model_dump())
        same_arch = context.environment.device.arch == request.context.environment.device.arch
        if not same_arch or not all(field.field.startswith(may_differ) for field in differing):
            continue
        found = store.get(context, request.scenario)
        resolution = resolve_trusted(request, found, uncompared=limits.uncompared)
        if resolution is not None:
            return replace(resolution, how=how, differences=differing, recorded_in=context)
    return None


def _from_tree(request: Request, store: TolerantStore, *, other_gpus: bool) -> Resolution | None:
    """Return the first declared config that a decision tree ranks for a request."""
    device = request.context.environment.device
    for tree, url in store.trees(request.context):
        fitted_on = tree.context.environment.device
        if fitted_on != device and not (other_gpus and fitted_on.arch == device.arch):
            continue
        for config in tree.rank(request.scenario.values):
            if config in request.declared:
                differing = differences(request.context.model_dump(), tree.context.model_dump())
                return request.resolution(
                    "tree", request.declared[config], store=url, differences=differing
                )
    return None
