"""Of what other tools found: what a launch may take over as measured, and what may stand in for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..model.foreign_result import ForeignResult
from ..model.record import Measurement, Record, Winner
from ..model.scenario import Config, now
from ..triton_internals.autotune_cache import disk_cache_key

__all__ = ["measured", "stand_in"]


def measured(request: Any, entries: Sequence[ForeignResult]) -> Record | None:
    """Triton's own timings of this launch, if its hash proves that kernel, configs and compiler are these."""
    proven = [each for each in _fitting(request, entries) if each.proof]
    proof = _proof(request) if proven else ""
    ours = [each for each in proven if each.proof == proof]
    taken: dict[Config, Measurement] = {}
    for timing in (
        timing for entry in ours for timing in entry.timings if timing.median is not None
    ):
        for name in request.declared:
            if timing.means(name):
                told = timing.model_dump(include={"median", "p20", "p80"})
                taken.setdefault(
                    name, Measurement(config=name, at=now(), by="Triton's disk cache", **told)
                )
    if not taken:
        return None
    best = min(
        taken.values(), key=lambda each: each.median or 0.0
    )  # Triton's tune came to its end: nothing is open
    won = Winner(config=best.config, at=now())
    return Record(scenario=request.scenario, winner=won, measurements=tuple(taken.values()))


def stand_in(request: Any, entries: Sequence[ForeignResult]) -> tuple[Any, str] | None:
    """The declared config that another tool found best for this launch, and whose word that is."""
    for entry in _fitting(request, entries):
        for name in request.declared:
            if entry.timings[0].means(name):
                return request.declared[name], entry.origin
    return None


def _fitting(request: Any, entries: Sequence[ForeignResult]) -> list[ForeignResult]:
    environment = request.context.environment
    named = {name: str(value) for name, value in request.scenario.args.items()}
    keys = [[str(value) for value in _key(request)]]
    keys.append([str(value) for value in _key(request, request.scenario.args)])
    return [
        each
        for each in entries
        if each.fits(keys, named, environment.device.name, environment.triton)
    ]


def _key(request: Any, instead: Any = None) -> list[Any]:
    """The key that Triton's autotuner makes of a launch; with the buckets' values instead of its own if given."""
    tuner = request.autotuner
    given = {
        name: value
        for name, value in {**tuner.nargs, **request.kwargs}.items()
        if name in tuner.arg_names
    }
    values = [(instead or given).get(name, given[name]) for name in tuner.keys if name in given]
    return values + [str(value.dtype) for value in given.values() if hasattr(value, "dtype")]


def _proof(request: Any) -> str:
    """Return the name of the folder in which Triton keeps its results of this launch."""
    configs = [request.declared[name] for name in request.declared]
    return disk_cache_key(request.autotuner.fn, _key(request), configs)
