"""Fallbacks for a scenario without a usable record, from the most to the least trustworthy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pydantic import ValidationError

from ..model.difference import Difference, differences
from ..model.resolution import How, Resolution
from ..model.scenario import Scenario
from .foreign_results import find_foreign_config
from .record_lookup import resolve_trusted
from .request import Request
from .tolerant_store import TolerantStore

__all__ = ["FALLBACKS", "FallbackLimits", "fall_back", "find_nearest", "nearest_differences"]


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
