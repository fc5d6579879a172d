"""Write `records.jsonl`: records of tuning `products` on three GPUs, with made-up timings.

Run with PYTHONPATH=.:client:service:tests:tests/programs/prewarm; arguments: [FILE [DEVICE…]]

The launches are real: they are what Triton makes of such arguments for these GPUs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import products
from support.launch_binding import Pointer, bind_launch
from support.records import MOMENT, tuned_record
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from dejavu_cache.model.record import Measurement, Record, RecordedLaunch, RecordSet
from dejavu_cache.model.scenario import Context, Device, Kernel, Problem, Scenario, canonical_json
from dejavu_cache.prewarm.plan import builder_environment
from dejavu_cache.runtime.launch_recorder import LAUNCH_METHOD
from dejavu_cache.triton_internals.compilation import launch_of, target_of
from dejavu_cache.triton_internals.config_names import describe
from dejavu_cache.triton_internals.hooks import DevicelessDriver
from dejavu_cache.triton_internals.identity import identify, jit_function, kernel_name

DEVICES = [
    Device(name="NVIDIA H200", arch="sm_90", units=132, memory_gib=140),
    Device(name="NVIDIA B200", arch="sm_100", units=148, memory_gib=179),
    Device(name="AMD Instinct MI300X", arch="gfx942", units=304, memory_gib=192),
]


def launch(fn: Any, config: Any, device: Device, *args: Any, **options: Any) -> RecordedLaunch:
    """Return the launch that would be recorded for these arguments on that GPU."""
    own = {} if config is None else config.all_kwargs()
    noted = launch_of(*bind_launch(fn, target_of(device.arch), args, {**options, **own}), config)
    assert noted is not None
    return noted


def record(
    tuner: Any, scenario: Scenario, best: int, launches: tuple[RecordedLaunch, ...]
) -> Record:
    """Return a record with one fastest config; the others are slower by their distance to it."""
    measurements = [
        Measurement(
            config=describe(config), median=1.0 + abs(index - best), at=MOMENT, by="made up"
        )
        for index, config in enumerate(tuner.configs)
    ]
    return tuned_record(scenario, measurements).model_copy(update={"launches": launches})


def context(tuner: Any, device: Device, **problem: Any) -> Context:
    """As a process on that GPU would have it."""
    return Context(
        kernel=Kernel(name=kernel_name(tuner), source=str(identify(tuner, ()).source)),
        environment=builder_environment(device),
        problem=Problem(**problem),
    )


def sets(device: Device, scale: int) -> list[RecordSet]:
    """All records of a GPU; `scale` lets their winners differ."""
    add, product = products.add_one, products.product
    x, a = Pointer("float32"), Pointer("float16")
    adds = []
    for n in (1 << 10, 1 << 17):
        best = (n.bit_length() + scale) % 2
        launches = tuple(
            launch(jit_function(add), add.configs[best], device, x, x, size) for size in (n, n + 1)
        )
        scenario = Scenario(args={"n": n}, dtypes={"x_ptr": "float32", "y_ptr": "float32"})
        adds.append(record(add, scenario, best, launches))
    products_ = [
        record(
            product,
            Scenario(
                args={"M": 16, "N": 512, "K": 256},
                dtypes=dict.fromkeys(("a_ptr", "b_ptr", "c_ptr"), "float16"),
            ),
            1,
            (launch(jit_function(product), product.configs[1], device, a, a, a, 16, 512, 256),),
        )
    ]
    halves = launch(products.halve, None, device, x, 64)
    method = {"method": "events-cold"}
    return [
        RecordSet(
            context=context(
                add, device, keys=("n",), buckets=add.declaration.problem.buckets, **method
            ),
            records=tuple(adds),
        ),
        RecordSet(
            context=context(
                product,
                device,
                keys=("M", "N", "K"),
                buckets=product.declaration.problem.buckets,
                **method,
            ),
            records=tuple(products_),
        ),
        RecordSet(
            context=context(products.halve, device, keys=(), method=LAUNCH_METHOD),
            records=(Record(scenario=Scenario(), launches=(halves,)),),
        ),
    ]


def write(to: Path, devices: Sequence[str]) -> None:
    """Write the records of some devices, one context per line."""
    driver.set_active(DevicelessDriver(GPUTarget("cuda", 90, 32)))
    chosen = [device for device in DEVICES if device.name in devices]
    lines = [
        canonical_json(entryset)
        for scale, device in enumerate(chosen)
        for entryset in sets(device, scale)
    ]
    to.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    here = Path(__file__).with_name("records.jsonl")
    write(
        Path(sys.argv[1]) if sys.argv[1:] else here,
        sys.argv[2:] or [device.name for device in DEVICES],
    )
