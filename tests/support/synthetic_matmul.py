"""A matrix product on an imagined GPU: how long each config takes in each scenario, by arithmetic.

Tiles are rounded up, run in waves over the units, and are slowed by small blocks, idle warps and
register spills: enough for different configs to win in different places, as they do on real GPUs.
"""

import math
import random
from collections.abc import Iterable
from datetime import timedelta

from dejavu_cache.model.record import Failure, Measurement, RecordSet
from dejavu_cache.model.scenario import Config, Scenario
from support.records import MOMENT, context, tuned_record

UNITS = 132
SHARED = 220_000


def configs() -> list[Config]:
    """96 configs of five parameters."""
    return [
        Config(
            params={"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k},
            options={"num_warps": warps, "num_stages": stages},
        )
        for m in (16, 32, 64, 128)
        for n in (32, 64, 128, 256)
        for k in (32, 64, 128)
        for warps, stages in ((4, 3), (8, 4))
    ]


def scenarios(sizes: Iterable[int] = (16, 64, 256, 1024, 4096)) -> list[Scenario]:
    """Every combination of three sizes and two dtypes."""
    at = list(sizes)
    return [
        Scenario(args={"M": m, "N": n, "K": k, "bias": m > n}, dtypes={"a_ptr": dtype})
        for m in at
        for n in at
        for k in at[1:]
        for dtype in ("float16", "float32")
    ]


def milliseconds(scenario: Scenario, config: Config) -> float | None:
    """Return the time of a config in milliseconds, or None if it does not fit."""
    size = 2 if scenario.dtypes["a_ptr"] == "float16" else 4
    m, n, k = (int(scenario.args[name] or 0) for name in ("M", "N", "K"))
    block_m, block_n, block_k = (int(config.params[f"BLOCK_{name}"] or 0) for name in "MNK")
    warps, stages = (int(config.options[name] or 0) for name in ("num_warps", "num_stages"))
    if (block_m + block_n) * block_k * size * stages > SHARED:
        return None
    waves = math.ceil(math.ceil(m / block_m) * math.ceil(n / block_n) / UNITS)
    reuse = block_m * block_n / (block_m + block_n)
    compute = (
        block_m
        * block_n
        * block_k
        * size
        / 2
        / min(1.0, (block_m * block_n / (warps * 1024)) ** 0.5)
    )
    memory = (block_m + block_n) * block_k * size * (1 + 8 / reuse) * 12
    spill = 1 + max(0.0, block_m * block_n / (warps * 2048) - 1)
    steps = math.ceil(k / block_k)
    tile = (
        steps * max(compute * spill, memory) / stages**0.2
        + 40_000
        + 6_000 * warps
        + 20_000 * stages
    )
    return float(waves * tile * 1e-8 + 0.002)


def sweep(
    among: Iterable[Scenario], noise: float = 0.01, seed: int = 0, later: int = 0, **changes: str
) -> RecordSet:
    """Return the records of a sweep with noise, `later` days on; keywords change the context."""
    chance, at = random.Random(seed), MOMENT + timedelta(days=later)
    records = []
    for scenario in among:
        measurements = []
        for config in configs():
            median = milliseconds(scenario, config)
            if median is None:
                failure = Failure(kind="out_of_resources", reason="shared memory")
                measurements.append(Measurement(config=config, failure=failure, at=at))
            else:
                measurements.append(
                    Measurement(config=config, median=median * chance.uniform(1, 1 + noise), at=at)
                )
        records.append(tuned_record(scenario, measurements))
    return RecordSet(
        context=context(**{"kernel": "pkg.kernels.matmul", **changes}), records=tuple(records)
    )
