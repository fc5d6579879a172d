"""vLLM's fused experts: their batches and configs, and launches that are tuned as one operation."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from support.addition import CONFIGS, add_one

from dejavu_cache.engines.vllm import fused_moe_suite
from dejavu_cache.engines.vllm import fused_moe_suite as fused_moe
from dejavu_cache.model.record import Record
from dejavu_cache.runtime.autotuner import CachedAutotuner
from dejavu_cache.runtime.resolver import Resolver
from dejavu_cache.settings import Mode
from dejavu_cache.stores import FileStore, TieredStore
from dejavu_cache.sweep.case_group import make_request
from dejavu_cache.sweep.suite import Case

LAYER = fused_moe_suite.ExpertLayer(experts=16, intermediate=32, hidden=8, top_k=2)


@pytest.fixture(autouse=True)
def _without_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the weights, which take the engine to make."""
    weights = fused_moe.Weights(torch.zeros(16, 64, 8), torch.zeros(16, 8, 32), None)
    monkeypatch.setattr(fused_moe, "make_weights", lambda layer: weights)


def chosen_experts(arguments: dict[str, Any]) -> list[set[int]]:
    _, experts, _ = arguments["routing"]
    return [set(batch.flatten().tolist()) for batch in experts]


@pytest.mark.parametrize("tokens", [1, 3, 16])
def test_small_batches_choose_other_experts_each_time(tokens: int) -> None:
    arguments = fused_moe_suite.make_arguments(LAYER, tokens)
    assert arguments["out"].shape == (fused_moe_suite.BATCHES, tokens, 8)
    chosen = chosen_experts(arguments)
    assert len(chosen) == fused_moe_suite.BATCHES
    assert len(set(map(frozenset, chosen))) > 1
    assert chosen_experts(fused_moe_suite.make_arguments(LAYER, tokens)) == chosen
    assert chosen_experts(fused_moe_suite.make_arguments(LAYER, tokens, seed=2)) != chosen


def test_a_large_batch_chooses_all_experts_and_is_measured_once() -> None:
    arguments = fused_moe_suite.make_arguments(LAYER, 64)
    assert arguments["out"].shape == (1, 64, 8)
    assert chosen_experts(arguments) == [set(range(16))]


def add_two(arguments: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Add two, in blocks of 64 quickly and with one rounded result."""
    out = arguments["out"]
    grid = (-(-out.numel() // config["BLOCK"]),)
    add_one[grid](arguments["hidden_states"], out, out.numel(), BLOCK=config["BLOCK"])
    out.add_(1)
    if config["BLOCK"] == 64:
        out[7] *= 1.5
    else:
        time.sleep(0.1)


@pytest.fixture
def tuned_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[bool, int], int]:
    """Return a function that tunes a layer's batch in an engine that adds, and names the winner."""
    engine = ModuleType("vllm.model_executor.layers.fused_moe")
    engine.fused_moe = SimpleNamespace(fused_moe_kernel=add_one)  # type: ignore[attr-defined]
    for part in ("vllm", "vllm.model_executor", "vllm.model_executor.layers"):
        monkeypatch.setitem(sys.modules, part, ModuleType(part))
    monkeypatch.setitem(sys.modules, engine.__name__, engine)
    by_size = {8: CONFIGS[::2], 16: CONFIGS[:1]}
    monkeypatch.setattr(fused_moe, "candidates", lambda layer, tokens: by_size[tokens])
    monkeypatch.setattr(fused_moe, "run_experts", add_two)

    def tune(is_float8: bool, tokens: int) -> int:
        layer = fused_moe_suite.ExpertLayer(16, 32, 8, 2, is_float8)
        tensors = {"hidden_states": torch.arange(40.0), "out": torch.zeros(40)}
        arguments = {**dict.fromkeys(("w1", "w2", "routing")), **tensors, **layer.key(tokens)}
        kernel = fused_moe_suite.experts_kernel(layer, tokens)
        request = make_request(Case("a batch", kernel, (1,), partial(dict, arguments)))
        store = TieredStore([FileStore(tmp_path)])
        resolver = Resolver(store, Mode.TUNE)
        resolution, _ = resolver.resolve(request, wait=0.0)
        return int(resolution.config.kwargs["BLOCK"])

    return tune


@pytest.mark.skipif(torch.cuda.is_available(), reason="the tensors are on the host")
@pytest.mark.parametrize(
    ("is_float8", "tokens", "block"), [(False, 8, 16), (True, 8, 64), (True, 16, 16)]
)
def test_a_batch_has_configs_of_its_own_and_float8_may_round(
    tuned_block: Callable[[bool, int], int], is_float8: bool, tokens: int, block: int
) -> None:
    assert tuned_block(is_float8, tokens) == block


NAMES = ("x", "out", "M", "BLOCK")


@pytest.fixture
def engine() -> ModuleType:
    module = ModuleType("engine")
    module.add_one = add_one  # type: ignore[attr-defined]
    return module


class TwoAdditions(fused_moe_suite.ExpertsOperation):
    """Adds two in two launches, and refuses blocks of 32."""

    def __init__(self, engine: ModuleType, launches: list[Mapping[str, Any]]) -> None:
        super().__init__(engine, "add_one", NAMES)
        self.engine = engine
        self.launches = launches

    def launch(self, arguments: Mapping[str, Any], config: Mapping[str, Any]) -> None:
        self.launches.append(config)
        block, size = config["BLOCK"], arguments["M"]
        if block == 32:
            raise ValueError("the engine takes no blocks of 32")
        between = torch.empty_like(arguments["x"])
        grid = (-(-size // block),)
        self.engine.add_one[grid](arguments["x"], between, size, BLOCK=block)
        self.engine.add_one[grid](between, arguments["out"], size, BLOCK=block)


def tune(kernel: CachedAutotuner, store: Path) -> Record:
    x = torch.arange(40.0)
    arguments = {"x": x, "out": torch.zeros(40), "M": 40}
    request = make_request(Case("forty", kernel, (1,), lambda: arguments))
    resolver = Resolver(TieredStore([FileStore(store)]), Mode.TUNE)
    resolver.resolve(request, wait=0.0)
    stored = FileStore(store).get(request.context, request.scenario)
    assert stored is not None
    kernel.fn.run(x, arguments["out"], 40, grid=(1,), BLOCK=16)
    assert torch.equal(arguments["out"], x + 2)
    return stored.record


@pytest.mark.skipif(torch.cuda.is_available(), reason="the tensors are on the host")
def test_an_operation_is_measured_as_a_whole_and_recorded_as_its_kernel(
    engine: ModuleType, tmp_path: Path
) -> None:
    launches: list[Mapping[str, Any]] = []
    whole = TwoAdditions(engine, launches)
    kernel = CachedAutotuner(whole, whole.arg_names, CONFIGS, ("M",), None, None)
    with pytest.raises(ValueError, match="no blocks of 32"):
        tune(kernel, tmp_path)
    kernel = CachedAutotuner(whole, whole.arg_names, CONFIGS[::2], ("M",), None, None)
    record = tune(kernel, tmp_path)
    assert {config["BLOCK"] for config in launches} == {16, 32, 64}
    assert {measurement.config.params["BLOCK"] for measurement in record.measurements} == {16, 64}
    assert record.winner is not None
    (context,) = FileStore(tmp_path).contexts()
    assert context.kernel.name.endswith("addition.add_one")


class Compiled:
    """What `JITFunction.run(warmup=True)` returns, with the calls that a tuner makes."""

    def __init__(self) -> None:
        self.is_loaded = False

    def _init_handles(self) -> None:
        self.is_loaded = True


def test_a_config_is_compiled_for_every_launch_and_nothing_runs(engine: ModuleType) -> None:
    kernels: list[Compiled] = []

    class Kernel:
        def run(self, *args: Any, grid: Any, warmup: bool, **config: Any) -> Compiled:
            assert warmup, "nothing is launched"
            assert config == {"BLOCK": 64}
            kernels.append(Compiled())
            return kernels[-1]

    engine.add_one = Kernel()  # type: ignore[attr-defined]
    whole = TwoAdditions(engine, [])
    compiled = whole.run(torch.ones(40), torch.zeros(40), 40, grid=(1,), warmup=True, BLOCK=64)
    assert isinstance(compiled, fused_moe_suite.CompiledLaunches)
    assert engine.add_one is whole.fn
    assert compiled.future.done()
    compiled.result()._init_handles()
    assert len(kernels) == 2
    assert all(kernel.is_loaded for kernel in kernels)
    with pytest.raises(ValueError, match="no blocks"):
        whole.run(torch.ones(40), torch.zeros(40), 40, warmup=True, BLOCK=32)
    assert engine.add_one is whole.fn, "also after an error"
