"""Writes `records.jsonl`: what tuning `products` on three GPUs would leave, with made-up timings.

PYTHONPATH=.:client:service:tests/prewarm python tests/prewarm/make_records.py

The launches are real: they are taken from kernels that Triton compiled for these GPUs.
"""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import products
import triton

from dejavu_cache.configs import describe
from dejavu_cache.launches import compilation, jit_function, launch_of, target_of, wheel
from dejavu_cache.noting import METHOD
from dejavu_cache.prewarm.plan import _here
from dejavu_cache.records import (
    Context,
    Device,
    Environment,
    Kernel,
    Launch,
    Measurement,
    Problem,
    Record,
    RecordSet,
    Scenario,
    Winner,
    canonical_json,
)
from dejavu_cache.source import kernel_name, source_hash

DEVICES = [
    Device(name="NVIDIA H200", arch="sm_90", units=132, memory_gib=140),
    Device(name="NVIDIA B200", arch="sm_100", units=148, memory_gib=179),
    Device(name="AMD Instinct MI300X", arch="gfx942", units=304, memory_gib=192),
]
MOMENT = datetime(2026, 1, 1, tzinfo=timezone.utc)
ALIGNED = '[["tt.divisibility", 16]]'


def launch(fn: Any, config: Any, device: Device, **given: Any) -> Launch:
    """What Triton compiles, taken from what it compiled."""
    asked = Launch(wheel=wheel(), **given)
    own = {} if config is None else config.all_kwargs()
    made = compilation(fn, asked, own, target_of(device))
    compiled = triton.compile(made.source, target=made.target, options=made.options)
    noted = launch_of(compiled.src, compiled.metadata, config)
    assert noted == asked
    return noted


def record(tuner: Any, scenario: Scenario, best: int, launches: tuple[Launch, ...]) -> Record:
    """A record in which one config is the fastest, and the others are slower by their place."""
    measurements = tuple(
        Measurement(config=describe(config), median=1.0 + abs(place - best), at=MOMENT, by="made up")
        for place, config in enumerate(tuner.configs)
    )
    winner = Winner(config=describe(tuner.configs[best]), at=MOMENT)
    return Record(scenario=scenario, winner=winner, launches=launches, measurements=measurements)


def context(tuner: Any, device: Device, **problem: Any) -> Context:
    """As a process on that GPU would have it."""
    here = _here(device)
    return Context(
        kernel=Kernel(name=kernel_name(tuner), source=source_hash(tuner)),
        environment=Environment(device=device, triton=here.triton, codegen=here.codegen, variables=here.variables),
        problem=Problem(**problem),
    )


def sets(device: Device, scale: int) -> list[RecordSet]:
    """All records of a GPU; `scale` lets their winners differ."""
    add, product = products.add_one, products.product
    pointers = {"x_ptr": "*fp32", "y_ptr": "*fp32"}
    aligned = dict.fromkeys(pointers, ALIGNED)
    adds = [
        record(
            add,
            Scenario(args={"n": 1 << power}, dtypes={"x_ptr": "float32", "y_ptr": "float32"}),
            best := (power + scale) % 2,
            tuple(
                launch(jit_function(add), add.configs[best], device, signature={**pointers, "n": "i32"}, attrs=attrs)
                for attrs in ({**aligned, "n": ALIGNED}, {**aligned, "n": "[]"})
            ),
        )
        for power in (10, 17)
    ]
    matrices = dict.fromkeys(("a_ptr", "b_ptr", "c_ptr"), "*fp16")
    sizes = {"M": "i32", "N": "i32", "K": "i32"}
    products_ = [
        record(
            product,
            Scenario(args={"M": m, "N": 512, "K": 256}, dtypes=dict.fromkeys(matrices, "float16")),
            1,
            (
                launch(
                    jit_function(product),
                    product.configs[1],
                    device,
                    signature={**matrices, **sizes},
                    attrs=dict.fromkeys({**matrices, **sizes}, ALIGNED),
                ),
            ),
        )
        for m in (16,)
    ]
    halves = launch(
        products.halve,
        None,
        device,
        signature={"x_ptr": "*fp32", "BLOCK": "constexpr"},
        attrs={"x_ptr": ALIGNED},
        constants={"BLOCK": 64},
    )
    method = {"method": "events-cold"}
    return [
        RecordSet(
            context=context(add, device, keys=("n",), buckets={"n": add._buckets["n"]}, **method), records=tuple(adds)
        ),
        RecordSet(
            context=context(product, device, keys=("M", "N", "K"), buckets={"M": product._buckets["M"]}, **method),
            records=tuple(products_),
        ),
        RecordSet(
            context=context(products.halve, device, keys=(), method=METHOD),
            records=(Record(scenario=Scenario(), launches=(halves,)),),
        ),
    ]


if __name__ == "__main__":
    lines = [canonical_json(each) for place, device in enumerate(DEVICES) for each in sets(device, place)]
    Path(__file__).with_name("records.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
