"""An engine's operation is tuned as a whole: all its launches with one config."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from support.addition import CONFIGS, add_one

from dejavu_cache.engines.vllm.fused_moe_suite import CompiledLaunches, ExpertsOperation
from dejavu_cache.model.record import Record
from dejavu_cache.runtime.autotuner import CachedAutotuner
from dejavu_cache.runtime.resolver import Resolver
from dejavu_cache.settings import Mode
from dejavu_cache.stores import FileStore, TieredStore
from dejavu_cache.sweep.case_group import make_request
from dejavu_cache.sweep.suite import Case

NAMES = ("x", "out", "M", "BLOCK")


@pytest.fixture
def engine() -> ModuleType:
    module = ModuleType("engine")
    module.add_one = add_one  # type: ignore[attr-defined]
    return module


class TwoAdditions(ExpertsOperation):
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
    assert isinstance(compiled, CompiledLaunches)
    assert engine.add_one is whole.fn
    assert compiled.future.done()
    compiled.result()._init_handles()
    assert len(kernels) == 2
    assert all(kernel.is_loaded for kernel in kernels)
    with pytest.raises(ValueError, match="no blocks"):
        whole.run(torch.ones(40), torch.zeros(40), 40, warmup=True, BLOCK=32)
    assert engine.add_one is whole.fn, "also after an error"
