"""Tune a kernel on a pretended GPU with an autotuning listener, twice, and print what it heard."""

from __future__ import annotations

from typing import Any

import support.pretended_gpu  # noqa: F401 - replaces the driver
import torch
import triton
import triton.language as tl
from triton import knobs

from dejavu_cache import cached_autotune

events: list[dict[str, Any]] = []
knobs.autotuning.listener = lambda **event: events.append(event)


def body(x, n, B: tl.constexpr):
    tl.store(x, n)


def prune(configs: list[Any], named: dict[str, Any], **more: Any) -> list[Any]:
    return configs if named["n"] == 5 else configs[:1]


def make() -> Any:
    return cached_autotune(
        configs=[triton.Config({"B": block}) for block in (16, 32)],
        key=["n"],
        do_bench=lambda call, quantiles: [1.0, 1.0, 1.0],
        prune_configs_by={"early_config_prune": prune},
    )(triton.jit(body))


for kernel in (make(), make()):
    for n in (5, 5, 6):
        kernel[(1,)](torch.empty(64), n)
    event = events.pop()
    assert not events
    assert event["fn"] is kernel.fn
    assert event["fn"].cache_key
    assert event["key"] == (5, "torch.float32")
    assert event["best_config"] in event["configs_timings"]
    assert [len(times) for times in event["configs_timings"].values()] == [3, 3]
    print(event["cache_hit"], event["duration"] is None)
