"""What a launch runs without a usable record of its scenario."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..model.resolution import Resolution
from ..model.scenario import Difference, Scenario, differences
from .known_records import KnownRecords
from .request import Request
from .rules import trusted_choice

__all__ = ["fall_back", "find_nearest", "nearest_differences"]


def fall_back(
    request: Request, records: KnownRecords, max_distance: float, *, uncompared: bool
) -> Resolution:
    """Return a config and its provenance, from the most to the least trustworthy.

    It is the first of these that there is:

    1. `toolchain`: the scenario's record made with another Triton or code generator;
    2. `nearest`: the winner of the nearest recorded scenario;
    3. `tree`: the choice of a decision tree fitted on this GPU;
    4. `default`: the default config.

    Args:
        request: the scenario.
        records: the kernel's.
        max_distance: of a nearest scenario, in powers of two summed over the key arguments.
        uncompared: whether a record may serve whose winner nobody has compared.
    """
    return next(_answers(request, records, max_distance, uncompared=uncompared))


def _answers(
    request: Request, records: KnownRecords, max_distance: float, *, uncompared: bool
) -> Iterator[Resolution]:
    """Yield what each fallback answers, in the order of `fall_back`."""
    context, scenario = request.context, request.scenario
    for other in records.other_toolchains(context):
        found = records.tiers.get(other, scenario)
        if choice := trusted_choice(request, found, uncompared=uncompared):
            differing = differences(context.model_dump(), other.model_dump())
            yield replace(choice, how="toolchain", differences=differing, recorded_in=other)
    for distance, near in records.near(context, scenario, request.exact, max_distance):
        found = records.tiers.get(context, near)
        if choice := trusted_choice(request, found, uncompared=uncompared):
            differing = differences(scenario.model_dump(), near.model_dump())
            yield replace(
                choice, how="nearest", distance=distance, recorded_for=near, differences=differing
            )
    for tree, url in records.trees(context):
        for config in tree.rank(scenario.values):
            if config in request.declared:
                differing = differences(context.model_dump(), tree.context.model_dump())
                choice = request.resolution("tree", request.declared[config], url)
                yield replace(choice, differences=differing)
    yield request.resolution("default", request.default)


def find_nearest(request: Request, records: KnownRecords) -> tuple[float, Scenario] | None:
    """Return the distance of the nearest other scenario with a record, and the scenario."""
    candidates = records.near(request.context, request.scenario)
    return next((near for near in candidates if near[1] != request.scenario), None)


def nearest_differences(request: Request, records: KnownRecords) -> list[Difference]:
    """Return the fields that set the nearest record apart from a request.

    The nearest record is looked for in the request's own context first, and else in the context
    that differs in the fewest fields. Without any record of the kernel there are no differences.
    """
    if near := find_nearest(request, records):
        return differences(request.scenario.model_dump(), near[1].model_dump())
    by_context = [
        differences(request.context.model_dump(), context.model_dump())
        for context in records.other_contexts(request.context)
    ]
    return min(by_context, key=len, default=[])
