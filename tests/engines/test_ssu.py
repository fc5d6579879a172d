"""vLLM's update of Mamba's state is tuned by its own code; those parts are skipped without vLLM."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from dejavu_cache.engines.vllm.ssu import (
    MambaLayer,
    engine_config,
    make_arguments,
    run_update,
    update_kernel,
)
from dejavu_cache.engines.vllm.ssu_suite import cases
from dejavu_cache.integrations.table_files import TABLE_FILES, write_tables
from dejavu_cache.integrations.table_names import STATE_UPDATE, TableEntry
from dejavu_cache.integrations.tuned_tables import collect_tables
from dejavu_cache.runtime.resolver import Resolver
from dejavu_cache.settings import Mode, current_settings
from dejavu_cache.stores import FileStore, TieredStore
from dejavu_cache.sweep.requests import make_request
from dejavu_cache.sweep.suite import Case

LAYER = MambaLayer(4, 12, 20, groups=2, dtype="float16")  # bfloat16 is not interpreted
SMALL = {"BLOCK_SIZE_M": 8, "num_warps": 2}


@pytest.mark.parametrize("cache_dtype", ["float32", "bfloat16", "float16"])
def test_a_layer_s_key_names_its_table(cache_dtype: str) -> None:
    layer = MambaLayer(4, 64, 128, cache_dtype=cache_dtype)
    named = {name: str(value) for name, value in layer.key(8).items()}
    assert named["effective_batch"] == "32"
    labels = {"headdim": "64", "dstate": "128"}
    labels["cache_dtype"] = "float32" if cache_dtype == "float32" else "float16"
    assert TableEntry(STATE_UPDATE, named, "effective_batch").labels() == labels
    assert TableEntry(STATE_UPDATE, {**named, "z": "1"}, "effective_batch").labels() is None


def test_gpus_share_heads_and_groups_and_odd_shapes_are_refused() -> None:
    assert MambaLayer(8, 64, 128, 4).on_each_of(2) == MambaLayer(4, 64, 128, 2)
    assert MambaLayer(8, 64, 128, 1).on_each_of(2) == MambaLayer(4, 64, 128, 1)
    for layer, gpus in ((MambaLayer(8, 64, 128, 2), 4), (LAYER, 3), (LAYER, 0)):
        with pytest.raises(ValueError, match=f"tp={gpus}"):
            layer.on_each_of(gpus)
    for wrong in ({"heads": 0}, {"groups": 3}, {"dtype": "float32"}, {"cache_dtype": "int8"}):
        with pytest.raises(ValueError, match=r"above 0|do not divide|choose"):
            MambaLayer(**{"heads": 4, "headdim": 64, "dstate": 128, **wrong})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="choose one of"):
        next(cases(preset="unknown"))


@pytest.fixture
def mamba_ssm(import_engine: Callable[[str], ModuleType]) -> Iterator[Any]:
    """Return vLLM's module, which reads the tables anew in each test."""
    module: Any = import_engine("vllm.model_executor.layers.mamba.ops.mamba_ssm")
    caches = (module.get_ssm_configs, module._try_get_optimal_ssm_config_cached)
    for cached in caches:
        cached.cache_clear()
    yield module
    for cached in caches:
        cached.cache_clear()


def expected(arguments: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the output and the new states in torch."""
    x, dt, a, b, c, d = (arguments[name].float() for name in ("x", "dt", "A", "B", "C", "D"))
    ratio = x.shape[1] // b.shape[1]
    b, c = (tensor.repeat_interleave(ratio, dim=1) for tensor in (b, c))
    steps = torch.nn.functional.softplus(dt + arguments["dt_bias"].float())
    blocks = arguments["blocks"].long()
    before = arguments["state"][blocks].float()
    states = before * (a * steps[..., None]).exp() + (steps * x)[..., None] * b[:, :, None]
    after = arguments["state"].float().clone()
    after[blocks] = states
    return (states * c[:, :, None]).sum(-1) + x * d, after


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cache_dtype", ["float32", "float16"])
def test_vllm_updates_states_with_the_config_of_the_tuner(
    mamba_ssm: Any, monkeypatch: pytest.MonkeyPatch, cache_dtype: str
) -> None:
    kernel, launches = getattr(mamba_ssm, STATE_UPDATE), []

    class Listener:
        def __getitem__(self, grid: Any) -> Callable[..., None]:
            def launch(*args: Any, **options: Any) -> None:
                assert args[-3:-1] == (True, True), "softplus, and what a head has once"
                launches.append((grid({"BLOCK_SIZE_M": args[-1]}), options["num_warps"]))
                kernel[grid](*args, **options)

            return launch

    monkeypatch.setattr(mamba_ssm, STATE_UPDATE, Listener())
    arguments = make_arguments(replace(LAYER, cache_dtype=cache_dtype), 3)
    out, states = expected(arguments)
    run_update(arguments, SMALL)
    assert launches == [((2, 3, 4), 2)], "12 features by 8, sequences and heads"
    assert torch.allclose(arguments["out"].float(), out, rtol=0.01, atol=0.002)
    assert torch.allclose(arguments["state"].float(), states, rtol=0.01, atol=0.002)
    with pytest.raises(KeyError, match="num_warps"):
        run_update(arguments, {"BLOCK_SIZE_M": 8})


@pytest.mark.filterwarnings("ignore")
def test_an_update_that_takes_no_config_is_not_tuned(
    mamba_ssm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = make_arguments(LAYER, 1)
    monkeypatch.setattr(mamba_ssm, "selective_state_update", lambda *_, **__: None)
    with pytest.raises(RuntimeError, match="no tuned config"):
        run_update(arguments, SMALL)
    monkeypatch.delattr(mamba_ssm, "try_get_optimal_ssm_config")
    for use in (partial(run_update, arguments, SMALL), partial(engine_config, LAYER, 1)):
        with pytest.raises(RuntimeError, match=r"reads no tuned tables.*0\.22"):
            use()


@pytest.mark.filterwarnings("ignore")
def test_the_engine_s_own_config_comes_first_and_no_block_exceeds_a_head(mamba_ssm: Any) -> None:
    shapes = {"nemotron-h-8b": (64, 128, 3, 32), "zamba2-2.7b": (64, 64, 3, 20)}
    for preset, shape in shapes.items():
        *_, case = cases(preset=preset, tp="4", sizes="3")
        configs = [(c.kwargs["BLOCK_SIZE_M"], c.num_warps) for c in case.kernel.configs]
        own = mamba_ssm.try_get_optimal_ssm_config(*shape, "float32", False)
        assert configs[0] == own, "of a table or by default, as the version has it"
        assert sorted(configs) == [(m, n) for m in (4, 8, 16, 32, 64) for n in (1, 2, 4, 8)]


@pytest.mark.filterwarnings("ignore")
def test_vllm_reads_the_table_of_a_tuned_update(
    mamba_ssm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dejavu_cache.engines.vllm.ssu._grid_configs", lambda *_: [SMALL])
    store = FileStore(tmp_path / "store")
    resolver = Resolver(TieredStore([store]), Mode.TUNE, 0.0, current_settings())
    kernel = update_kernel(LAYER, (1, 2))
    for sequences in (2, 1):
        arguments = partial(make_arguments, LAYER, sequences)
        request = make_request(Case(f"{sequences}", kernel, (1,), arguments))
        resolver.resolve(request, wait=0.0)
    (table,) = collect_tables(store)
    assert set(table.configs) == {4, 8}
    (file,) = TABLE_FILES["vllm"]([table._replace(device="NVIDIA_H200")], table.triton)
    write_tables([file], tmp_path / "tables")
    monkeypatch.setenv("VLLM_TUNED_CONFIG_FOLDER", str(tmp_path / "tables"))
    for sequences, nearest in ((1, 4), (2, 8), (3, 8)):
        assert engine_config(LAYER, sequences) == table.configs[nearest]
