"""Tune vLLM's float8 products, LoRA and Mamba; compare the exported tables with its own and none.

    bash benchmarks/vllm_engine/go.sh products [SECONDS [WORD]]

runs all operations, or those whose names have a word (`heads` has Mamba's), and writes
OUT/products.json and the tables to OUT/configs. Everything is tuned into a fresh store, which is
exported; vLLM reads the export by its own functions. Configs then take turns on other tokens than
those that they were tuned on.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fused_moe import OUT, compare, log, seconds_left, speedups, tune  # type: ignore[import-not-found]

SIZES = (1, 16, 64, 256, 1024, 4096)
SEQUENCES = (1, 16, 64, 256)
"""Batches of operations whose arguments have a state for each sequence."""
WORD = sys.argv[3] if len(sys.argv) > 3 else ""
COMPARING = 5.0
"""Seconds to keep for the comparison of an operation's configs."""


class Operation(NamedTuple):
    """An operation to tune.

    Attributes:
        name: for the results.
        cases: one for each of `sizes`.
        arguments: makes them for a batch and a seed.
        run: runs the operation on arguments with a config.
        config: returns what vLLM takes for a batch, by its tables.
        sizes: the batches.
    """

    name: str
    cases: list[Any]
    arguments: Callable[[int, int], Mapping[str, Any]]
    run: Callable[[Any, Any], None]
    config: Callable[[int], Mapping[str, Any]]
    sizes: tuple[int, ...] = SIZES


def operations() -> Iterator[Operation]:
    """Yield products, with a table of vLLM's and without, those of LoRA, and Mamba's update."""
    from dejavu_cache.engines.vllm import (
        block_products,
        block_products_suite,
        lora,
        lora_suite,
        ssu,
        ssu_suite,
    )

    products = block_products_suite.PRESETS
    for layer in (products["deepseek-v3"][0], products["qwen3-8b-fp8"][0]):
        yield Operation(
            str(layer),
            list(block_products_suite.layer_cases(layer, SIZES)),
            partial(block_products.make_arguments, layer),
            block_products.run_product,
            partial(block_products.engine_config, layer),
        )
    for layer in lora_suite.PRESETS["llama3-8b"][1:3]:
        adapted = replace(layer, adapters=4)
        for step in ("shrink", "expand_true"):
            yield Operation(
                f"{step} {adapted.inputs} to {adapted.outputs}, rank {adapted.rank}",
                list(lora_suite.layer_cases(adapted, (step,), SIZES)),
                partial(lora.make_arguments, adapted, step),
                lora.run_lora,
                partial(lora.engine_config, adapted, step),
            )
    wide = ssu_suite.PRESETS["nemotron-h-8b"]
    for mamba in (wide, replace(wide, cache_dtype="bfloat16")):
        yield Operation(
            str(mamba),
            list(ssu_suite.layer_cases(mamba, SEQUENCES)),
            partial(ssu.make_arguments, mamba),
            ssu.run_update,
            partial(ssu.engine_config, mamba),
            SEQUENCES,
        )


@contextmanager
def tables_of(folder: Path | None) -> Iterator[None]:
    """Have vLLM read tables from a folder of ours meanwhile, or those of its package."""
    from vllm.lora.ops.triton_ops import utils
    from vllm.model_executor.layers.mamba.ops import mamba_ssm
    from vllm.model_executor.layers.quantization.utils import fp8_utils

    caches = (
        fp8_utils.get_w8a8_block_fp8_configs,
        utils.load_lora_op_config,
        utils.get_lora_op_configs,
        mamba_ssm.get_ssm_configs,
        mamba_ssm._try_get_optimal_ssm_config_cached,
    )
    package, states = fp8_utils.__file__, mamba_ssm._CONFIGS_DIR
    if folder is not None:
        mamba_ssm._CONFIGS_DIR = str(folder)  # nor are the package's tables of states read
        fp8_utils.__file__ = str(folder.parent / "fp8_utils.py")  # it reads `configs` beside itself
        os.environ["VLLM_TUNED_CONFIG_FOLDER"] = str(folder)
    for cached in caches:
        cached.cache_clear()
    try:
        yield
    finally:
        fp8_utils.__file__, mamba_ssm._CONFIGS_DIR = package, states
        os.environ.pop("VLLM_TUNED_CONFIG_FOLDER", None)
        for cached in caches:
            cached.cache_clear()


def export(store: Any) -> Path:
    """Write a store's tables for vLLM, and return their folder."""
    from dejavu_cache.integrations.table_files import TABLE_FILES, write_tables
    from dejavu_cache.integrations.tuned_tables import collect_tables
    from dejavu_cache.triton_internals.distribution import triton_version

    folder = (OUT / "configs").absolute()
    files = TABLE_FILES["vllm"](collect_tables(store), triton_version() or "")
    log("tables:", *(path.name for path in write_tables(files, folder)))
    return folder


def run_operation(operation: Operation, store: Any, seconds: float) -> dict[str, Any]:
    """Tune an operation, and compare what vLLM takes with our tables, its own and none."""
    result: dict[str, Any] = {"tune": tune(operation.cases, store, seconds), "ms": {}}
    folders = {"ours": export(store), "default": OUT.absolute() / "none" / "configs"}
    for tokens in operation.sizes:
        configs = {}
        for name, folder in {**folders, "shipped": None}.items():
            with tables_of(folder):
                configs[name] = operation.config(tokens)
        if configs["shipped"] == configs["default"]:
            del configs["shipped"]
        run = partial(operation.run, operation.arguments(tokens, 2))
        result["ms"][tokens] = times = compare(run, configs)
        log(operation.name, tokens, times)
    return {**result, **speedups(result["ms"])}


def main() -> None:
    """Run all operations, writing results after each."""
    import torch
    import triton
    import vllm

    from dejavu_cache.stores import open_store

    results: dict[str, Any] = {
        "vllm": vllm.__version__,
        "triton": triton.__version__,
        "device": torch.cuda.get_device_name(),
        "operations": {},
    }
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(folder)
        chosen = [operation for operation in operations() if WORD in operation.name]
        for index, operation in enumerate(chosen):
            seconds = seconds_left() / (len(chosen) - index) - COMPARING
            result = run_operation(operation, store, seconds)
            results["operations"][operation.name] = result
            (OUT / "products.json").write_text(json.dumps(results, indent=1) + "\n")
            for key in ("speedup_over_shipped", "speedup_over_default"):
                if key in result:
                    numbers = {name: result[key][name] for name in ("mean", "least")}
                    print(json.dumps({"operation": operation.name, key: numbers}), flush=True)


if __name__ == "__main__":
    main()
