"""Tune vLLM's fused experts and compare the exported table with vLLM's own and its default.

    bash benchmarks/vllm_engine/go.sh fused_moe [SECONDS [LAYER...]]

writes OUT/fused_moe.json and the tables to OUT/tables. Each layer is tuned into a fresh store, the
store is exported, and vLLM reads the export. Configs then take turns on other tokens than those
that they were tuned on.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from engine_process import BEGIN, OUT, RESULTS, keep, log, seconds_left

COMPARING = 12.0
"""Seconds to keep for the comparison of a layer's configs."""
TURNS = 9
LAYERS = tuple(sys.argv[3:]) or ("qwen3-30b-a3b", "qwen3-30b-a3b-fp8", "experts-256x128-fp8")


def tune(cases: Sequence[Any], store: Any, seconds: float) -> dict[str, Any]:
    """Tune the cases of a kernel in order; each may take its share of what time is left."""
    from dejavu_cache.runtime.resolver import Resolver
    from dejavu_cache.settings import Mode
    from dejavu_cache.stores import TieredStore
    from dejavu_cache.sweep.case_group import make_request

    until = time.monotonic() + seconds
    configs = {config for case in cases for config in case.kernel.configs}
    counts = {"configs": len(configs), "benchmarked": 0, "cut_short": 0}
    start = time.monotonic()
    for index, case in enumerate(cases):
        request = make_request(case)
        # The first batches compile what the later ones need too.
        share = 3.0 * (until - time.monotonic()) / (len(cases) - index)
        budget = replace(request.budget, seconds=max(share, 0.5))
        resolver = Resolver(TieredStore([store]), Mode.TUNE)
        began = time.monotonic()
        resolution, benchmarked = resolver.resolve(replace(request, budget=budget), wait=0.0)
        counts["benchmarked"] += benchmarked
        counts["cut_short"] += benchmarked < len(request.declared)
        log(case.name, resolution.how, f"{benchmarked} of {len(request.declared)}",
            f"{time.monotonic() - began:.1f} s", str(resolution.config)[:110])  # fmt: skip
    return {**counts, "seconds": round(time.monotonic() - start, 1)}


def read_table(layer: Any, folder: Path | None) -> dict[int, dict[str, int]] | None:
    """Return the table that vLLM reads with a folder of ours, or without any."""
    from vllm.model_executor.layers.fused_moe.fused_moe import get_moe_configs

    os.environ.pop("VLLM_TUNED_CONFIG_FOLDER", None)
    if folder is not None:
        os.environ["VLLM_TUNED_CONFIG_FOLDER"] = str(folder)
    get_moe_configs.cache_clear()
    blocks = layer.block_shape or [0, 0]
    table = get_moe_configs(layer.experts, layer.intermediate, layer.table_dtype, *blocks)
    os.environ.pop("VLLM_TUNED_CONFIG_FOLDER", None)
    get_moe_configs.cache_clear()
    return table


def nearest(table: Mapping[int, Any], tokens: int) -> Any:
    """Return what vLLM takes from a table for a batch."""
    return table[min(table, key=lambda size: abs(size - tokens))]


def compare(run: Callable[[Any], None], configs: Mapping[str, Any]) -> dict[str, float]:
    """Return each config's duration in ms: the median of turns, by graphs with a cold L2 cache."""
    from dejavu_cache.tuning.device_timer import TURN, DeviceTimer, TimedLaunch

    timer = DeviceTimer("cudagraph-cold")
    times: dict[str, list[float]] = {name: [] for name in configs}
    for turn in range(TURNS):
        names = list(configs)[turn % len(configs) :] + list(configs)[: turn % len(configs)]
        for name in names:
            call = partial(run, configs[name])
            times[name].append(statistics.median(timer.sample(TimedLaunch(call), TURN).times))
    return {name: round(statistics.median(values), 5) for name, values in times.items()}


def speedups(ms: Mapping[int, Mapping[str, float]]) -> dict[str, Any]:
    """Return how much quicker our configs are than others, by batch size."""
    ratios_over: dict[str, Any] = {}
    for other in ("shipped", "default"):
        ratios = {
            tokens: round(times[other] / times["ours"], 4)
            for tokens, times in ms.items()
            if other in times
        }
        if ratios:
            ratios_over[f"speedup_over_{other}"] = {
                "mean": round(statistics.geometric_mean(ratios.values()), 4),
                "least": min(ratios.values()),
                "by_size": ratios,
            }
    return ratios_over


def run_layer(name: str, store: Any, seconds: float) -> dict[str, Any]:
    from vllm.model_executor.layers.fused_moe.fused_moe import get_default_config

    from dejavu_cache.engines.tuned_tables import collect_tables, vllm_files, write_table
    from dejavu_cache.engines.vllm.fused_moe_suite import (
        PRESETS,
        SIZES,
        layer_cases,
        make_arguments,
        run_experts,
    )
    from dejavu_cache.triton_internals.environment import triton_version

    layer = PRESETS[name]
    cases = list(layer_cases(layer, SIZES))
    result: dict[str, Any] = {"layer": str(layer), "tune": tune(cases, store, seconds)}
    for name, content in vllm_files(collect_tables(store), triton_version() or "").items():
        log("table:", write_table(name, content, OUT / "tables"))
    ours, shipped = read_table(layer, OUT / "tables"), read_table(layer, None)
    if ours is None:
        raise SystemExit(f"vLLM reads no table for {layer} in {OUT / 'tables'}")
    result |= {"ours": ours, "has_shipped_table": shipped is not None, "ms": {}}
    blocks, dtype = layer.block_shape, layer.table_dtype
    for tokens in SIZES:
        shape = (tokens, layer.experts, layer.intermediate, layer.hidden, layer.top_k)
        configs = {
            "ours": nearest(ours, tokens),
            "default": get_default_config(*shape, dtype, blocks),
        }
        if shipped:
            configs["shipped"] = nearest(shipped, tokens)
        result["ms"][tokens] = times = compare(
            partial(run_experts, make_arguments(layer, tokens, seed=2)), configs
        )
        log(name, tokens, times)
    result |= speedups(result["ms"])
    return result


def main() -> None:
    import tempfile

    import torch
    import triton
    import vllm

    from dejavu_cache.stores import open_store

    RESULTS.update(
        vllm=vllm.__version__,
        triton=triton.__version__,
        torch=torch.__version__,
        device=torch.cuda.get_device_name(),
        layers={},
    )
    log(*(RESULTS[name] for name in ("vllm", "triton", "torch", "device")))
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(folder)
        for index, name in enumerate(LAYERS):
            seconds = seconds_left() / (len(LAYERS) - index) - COMPARING
            keep("layers", name, value=run_layer(name, store, seconds))
    keep("seconds", value=round(time.monotonic() - BEGIN, 1))
    for name, result in RESULTS["layers"].items():
        for key in ("speedup_over_shipped", "speedup_over_default"):
            if key in result:
                print(
                    json.dumps({"layer": name, key: {k: result[key][k] for k in ("mean", "least")}})
                )


if __name__ == "__main__":
    main()
