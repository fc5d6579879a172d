"""vLLM's products of LoRA are tuned by its own code; those parts are skipped without vLLM."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from dejavu_cache.engines.vllm.lora import (
    LoraLayer,
    engine_config,
    lora_kernel,
    make_arguments,
    run_lora,
)
from dejavu_cache.engines.vllm.lora_suite import cases
from dejavu_cache.integrations.lora_tables import lora_labels
from dejavu_cache.integrations.table_files import TABLE_FILES, write_tables
from dejavu_cache.integrations.tuned_tables import collect_tables
from dejavu_cache.runtime.resolver import Resolver
from dejavu_cache.settings import Mode, current_settings
from dejavu_cache.stores import FileStore, TieredStore
from dejavu_cache.sweep.requests import make_request
from dejavu_cache.sweep.suite import Case

LAYER = LoraLayer(64, (48,), rank=16, adapters=2, dtype="float16")  # bfloat16 is not interpreted
SHRINK = {"block_m": 16, "block_n": 16, "block_k": 16, "split_k": 2, "group_size_m": 8}
EXPAND = {"block_m": 16, "block_n": 16, "block_k": 16}
OPTIONS = {"num_warps": 1, "num_stages": 1}


def test_a_layer_s_key_names_its_table_and_gpus_share_it() -> None:
    layer = LoraLayer(64, (32, 16, 16), "outputs", rank=8, adapters=3)
    sizes = {"max_loras": "4", "num_slices": "3"}
    for operation, function, further in (
        ("shrink", "_lora_shrink_kernel", {"k": "64", "n": "8"}),
        ("expand_true", "_lora_expand_kernel", {"k": "8", "n": "32"}),
    ):
        named = {name: str(value) for name, value in layer.key(operation, 5).items()}
        assert lora_labels(function, named) == {"lora": operation, **sizes, **further}
    assert layer.on_each_of(2) == LoraLayer(64, (16, 8, 8), rank=8, adapters=3)
    assert LoraLayer(64, (32,), "inputs").on_each_of(2) == LoraLayer(32, (32,))
    assert LAYER.on_each_of(5) == LAYER
    with pytest.raises(ValueError, match="tp=3"):
        layer.on_each_of(3)
    for wrong in ({"outputs": ()}, {"rank": 0}, {"divided": "rows"}, {"dtype": "int8"}):
        with pytest.raises(ValueError, match=r"above 0|choose"):
            LoraLayer(**{"inputs": 64, "outputs": (32,), **wrong})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="choose from"):
        next(cases(inputs="64", outputs="32", operations="shrink+expand"))


@pytest.fixture
def utils(import_engine: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return vLLM's module that looks configs up."""
    monkeypatch.setattr("torch.cuda.get_device_name", lambda *_: "NVIDIA H200")
    module = import_engine("vllm.lora.ops.triton_ops.utils")
    # vLLM's own copies from pinned memory, which there is none of without a GPU.
    monkeypatch.setattr(module, "async_tensor_h2d", torch.tensor)
    return module


def expected(arguments: dict[str, Any], before: torch.Tensor) -> torch.Tensor:
    """Compute an operation in torch; the first tensor of `tokens` has the tokens' adapters."""
    adapters = arguments["tokens"][0].long()
    inputs, results = arguments["inputs"].float(), []
    for index, stacked in enumerate(arguments["weights"]):
        small = inputs if arguments["operation"] == "shrink" else inputs[index].half().float()
        results.append(torch.einsum("mk,mnk->mn", small, stacked[adapters, 0].float()))
    if arguments["operation"] == "shrink":
        return torch.stack(results)
    made = torch.cat(results, 1)
    return made + before.float() if arguments["operation"] == "expand_true" else made


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("outputs", [(48,), (48, 16, 32)])
@pytest.mark.parametrize(
    ("operation", "config"), [("shrink", SHRINK), ("expand_true", EXPAND), ("expand_false", EXPAND)]
)
def test_vllm_multiplies_with_the_config_of_the_tuner(
    utils: Any,
    monkeypatch: pytest.MonkeyPatch,
    operation: str,
    config: dict[str, int],
    outputs: tuple[int, ...],
) -> None:
    arguments = make_arguments(replace(LAYER, outputs=outputs), operation, 5)
    before = arguments["out"].clone()
    run_lora(arguments, {**config, **OPTIONS, "num_ctas": 1})
    result = arguments["out"].float()
    assert torch.allclose(result, expected(arguments, before), rtol=0.02, atol=0.02)
    with pytest.raises(KeyError, match="block_n"):
        run_lora(arguments, {"block_m": 16})
    monkeypatch.setattr(utils, "is_batch_invariant", True)
    with pytest.raises(RuntimeError, match="no tuned config"):
        run_lora(arguments, config)


@pytest.mark.filterwarnings("ignore")
def test_vllm_reads_the_tables_of_tuned_operations(
    utils: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grids = {"shrink": {**SHRINK, **OPTIONS}, "expand_true": {**EXPAND, **OPTIONS}}
    for step, operation in (("shrink", "shrink"), ("expand", "expand_true")):
        name = f"dejavu_cache.engines.vllm.lora._{step}_configs"
        monkeypatch.setattr(name, lambda *_, config=grids[operation]: [config])
    store = FileStore(tmp_path / "store")
    resolver = Resolver(TieredStore([store]), Mode.TUNE, 0.0, current_settings())
    for operation in grids:
        kernel = lora_kernel(LAYER, operation, (4,))
        case = Case(operation, kernel, (1,), partial(make_arguments, LAYER, operation, 4))
        resolver.resolve(make_request(case), wait=0.0)
    tables = [table._replace(device="NVIDIA_H200") for table in collect_tables(store)]
    assert len(tables) == 2
    write_tables(TABLE_FILES["vllm"](tables, tables[0].triton), tmp_path / "tables")
    monkeypatch.setenv("VLLM_TUNED_CONFIG_FOLDER", str(tmp_path / "tables"))
    for function in (utils.load_lora_op_config, utils.get_lora_op_configs):
        function.cache_clear()
    try:
        several = LoraLayer(64, (48, 16, 16), rank=16, adapters=5, dtype=LAYER.dtype)
        for table in tables:
            operation = table.labels["lora"]
            for layer in (LAYER, several):
                assert engine_config(layer, operation, 7) == table.configs[4]
            run_lora(make_arguments(LAYER, operation, 4), table.configs[4])
    finally:
        for function in (utils.load_lora_op_config, utils.get_lora_op_configs):
            function.cache_clear()
