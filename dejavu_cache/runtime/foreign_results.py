"""Match results imported from other autotuners against a launch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from ..model.foreign_result import ForeignResult, ForeignTiming, version_order
from ..model.record import Measurement, Record, Winner
from ..model.scenario import Config, now
from ..triton_internals.autotune_cache import disk_cache_key, launch_key
from .request import Request

__all__ = ["ForeignConfig", "find_foreign_config", "record_from_triton_cache"]

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
