"""Records, contexts and configs with made-up values."""

import math
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any

from dejavu_cache.model.buckets import Pow2
from dejavu_cache.model.record import Measurement, OutputVerdict, Record, Winner
from dejavu_cache.model.scenario import (
    Config,
    Context,
    Device,
    Environment,
    Kernel,
    Problem,
    Scenario,
)
from dejavu_cache.stores import Store

MOMENT = datetime(2026, 1, 1, tzinfo=timezone.utc)


def context(**changes: Any) -> Context:
    """Return a context on an H200; keywords change parts of it."""
    device = Device(
        name=changes.get("device", "NVIDIA H200"), arch="sm_90", units=132, memory_gib=140
    )
    return Context(
        kernel=Kernel(
            name=changes.get("kernel", "pkg.kernels.add"), source=changes.get("source", "0" * 32)
        ),
        environment=Environment(
            device=device, triton=changes.get("triton", "3.6.0"), codegen="ptxas 12.9.86"
        ),
        problem=Problem(
            keys=("M", "N"), buckets={"M": Pow2()}, method=changes.get("method", "events-cold")
        ),
    )


def config(block: int = 64, **options: Any) -> Config:
    """Return a config with one meta-parameter."""
    return Config(params={"BLOCK": block}, options={"num_warps": 4, **options})


def measurement(block: int = 64, median: float = 1.0, at: datetime = MOMENT) -> Measurement:
    """Return a measurement with narrow quantiles."""
    return Measurement(
        config=config(block),
        median=median,
        p20=median * 0.99,
        p80=median * 1.001,
        at=at,
        by="me@here",
    )


def record(m: int = 32, *measurements: Measurement, **fields: Any) -> Record:
    """Return a record of the scenario M=m."""
    scenario = Scenario(args={"M": m, "N": 64}, dtypes={"x_ptr": "float16"})
    return Record(scenario=scenario, measurements=measurements or (measurement(),), **fields)


def first_record(store: Store) -> tuple[Context, Record]:
    """Return a store's first context, and the only record of it."""
    found = next(iter(store.record_sets()))
    (only,) = found.records
    return found.context, only


def tuned_record(scenario: Scenario, measurements: Iterable[Measurement]) -> Record:
    """Return a record of a finished tune, which the fastest config has won."""
    measured = tuple(measurements)
    best = min(measured, key=lambda item: math.inf if item.median is None else item.median)
    equal = {"out_ptr": OutputVerdict(outcome="equal")}
    winner = Winner(config=best.config, at=best.at, results=equal)
    return Record(scenario=scenario, winner=winner, measurements=measured)
