"""The attention backend inside vLLM's own modules, 0.22 to 0.33; skipped where vLLM is missing."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.attention_batches import Case, draw, take_new_tokens
from support.vllm_engine import common_metadata, config

vllm = pytest.importorskip("vllm")
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="tests the host's part, interpreted"),
]

from dejavu_cache.attention.sweep_suite import KERNELS  # noqa: E402
from dejavu_cache.engines.vllm.planned_attention import (  # noqa: E402
    LayerFeatures,
    LayerShape,
    ServingLimits,
)

HAS_LAYOUTS = find_spec("vllm.v1.kv_cache_layout") is not None
"""Whether vLLM chooses how a cache lies in memory, as from 0.29 on."""

CASE = Case(new=[1, 5], past=[40, 9], heads=(4, 2), head_size=32, padding=2, window=20)


def leave_one_config(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have nothing tuned."""
    for kernel in KERNELS.values():
        monkeypatch.setattr(kernel, "configs", [kernel.configs[0]])


def choose_layout(cache_config: Any) -> tuple[int, ...]:
    """Choose a layout as vLLM does from 0.29 on, and return the order that it stands for."""
    try:
        from vllm.v1.kv_cache_layout import KVCacheLayout
    except ImportError:
        return ()
    cache_config.kv_cache_layout = "LBNHC"
    cache_config.get_resolved_kv_cache_layout = lambda: KVCacheLayout.LBNHC
    return (0, 2, 1, 3)


def test_a_layer_s_warm_up_knows_the_engine_s_limits_and_its_final_block_sizes(
    backend: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    warmed: list[Any] = []
    waiting: list[Any] = []
    monkeypatch.setattr(
        "dejavu_cache.engines.vllm.backend.warm_up_attention", lambda *layer: warmed.append(layer)
    )
    monkeypatch.setattr("dejavu_cache.engines.vllm.backend.warm_up_when_loaded", waiting.append)
    settings = config()
    settings.speculative_config = SimpleNamespace(num_speculative_tokens=3)
    layer = make(settings, kv_cache_dtype="fp8")
    layer.process_weights_after_loading(torch.bfloat16)
    settings.cache_config.block_size = 528  # as vLLM chooses it for models with Mamba layers
    order = choose_layout(settings.cache_config)
    for each in waiting:
        each.warm_up()
    ((shape, _, limits),) = warmed
    assert shape == LayerShape(4, 2, 32, 528, torch.bfloat16, torch.float8_e4m3fn, order)
    assert limits == ServingLimits(8, 64, 128, decoded_at_once=4)
    settings.compilation_config.static_forward_context["layers.0"] = SimpleNamespace(impl=layer)
    group = SimpleNamespace(block_size=1056, head_size=32)  # that shares memory with larger layers
    backend.get_builder_cls()(group, ["layers.0"], settings, torch.device("cpu"))
    assert warmed[1:] == [(replace(shape, page=1056), warmed[0][1], limits)]


def engine_cache(backend: Any, arguments: dict[str, Any]) -> torch.Tensor:
    """Return a batch's cache as this version of vLLM holds it."""
    caches = [arguments["k_cache"], arguments["v_cache"]]
    if HAS_LAYOUTS:
        return torch.cat(caches, -1).contiguous().transpose(1, 2)
    cache = torch.stack(caches, 1)
    assert backend.get_kv_cache_shape(len(caches[0]), 16, 2, 32) == cache.shape
    assert backend.get_kv_cache_stride_order() == tuple(range(5))
    return cache


@pytest.mark.parametrize("padding", [0, 2])
def test_a_layer_reads_keys_that_are_in_the_cache_already(
    backend: Any, make: Any, monkeypatch: pytest.MonkeyPatch, padding: int
) -> None:
    leave_one_config(monkeypatch)
    batch = draw(CASE, "cpu")
    query = batch.arguments["q"]
    builder = backend.get_builder_cls()(None, ["0"], config(), torch.device("cpu"))
    queries = torch.cat([query, query[:padding]])
    cache = engine_cache(backend, batch.arguments)
    for options in ({}, {"kv_sharing_target_layer_name": "0"}):
        layer = make(sliding_window=CASE.window + 1, **options)
        step = builder.build(0, common_metadata(batch.arguments, len(query)))
        out = torch.full_like(queries, float("nan"))
        layer.forward(None, queries, None, None, cache, step, out)
        assert torch.allclose(out[: len(query)], batch.expected, rtol=1e-4, atol=1e-4)


def test_a_layer_s_scale_may_be_set_later(
    backend: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As vLLM's models of Transformers set it, up to 0.26 in each forward pass."""
    leave_one_config(monkeypatch)
    batch = draw(CASE, "cpu")
    query = batch.arguments["q"]
    builder = backend.get_builder_cls()(None, ["0"], config(), torch.device("cpu"))
    layer = make(sliding_window=CASE.window + 1, scale=1.0)
    layer.scale = 32**-0.5
    step = builder.build(0, common_metadata(batch.arguments, len(query)))
    out = torch.full_like(query, float("nan"))
    layer.forward(None, query, None, None, engine_cache(backend, batch.arguments), step, out)
    assert torch.allclose(out, batch.expected, rtol=1e-4, atol=1e-4)


def test_a_step_is_computed_through_vllm_s_interface(
    backend: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_one_config(monkeypatch)
    layer = make(sliding_window=CASE.window + 1)
    layer.process_weights_after_loading(torch.float32)
    batch = draw(CASE, "cpu")
    new = take_new_tokens(batch.arguments)
    arguments = {**batch.arguments, "slots": new.slots}
    cache = engine_cache(backend, arguments)
    tokens = len(arguments["q"])
    query, keys, values = (
        torch.cat([rows, rows[:2]]) for rows in (arguments["q"], new.keys, new.values)
    )
    out = torch.full_like(query, float("nan"))
    builder = backend.get_builder_cls()(None, ["0"], config(), torch.device("cpu"))
    support = builder.get_cudagraph_support(config(), None)
    assert support.name == "ALWAYS"
    common = common_metadata(arguments, tokens)
    step = builder.build(0, common)
    scales = SimpleNamespace(_k_scale=torch.ones(()), _v_scale=torch.ones(()))
    layer.forward(scales, query, keys, values, cache, step, out)
    assert torch.allclose(out[:tokens], batch.expected, rtol=1e-4, atol=1e-4)
    assert out[tokens:].isnan().all()
    captured = builder.build_for_cudagraph_capture(common)
    assert captured.is_for_capture
    assert captured.max_query_len == arguments["max_seqlen_q"], "mixed batches have no graph"
    assert captured.seq_lens.tolist() == [arguments["max_seqlen_q"]] * 4
    assert not layer.forward(scales, query, keys, values, cache, None, out).any()


def test_a_graph_of_mixed_batches_is_right_for_any_of_them(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.config import CUDAGraphMode

    leave_one_config(monkeypatch)
    batch = draw(Case(new=[23, 1], past=[40, 9], heads=(4, 2), head_size=32), "cpu")
    replayed = common_metadata(batch.arguments, 24)
    table = torch.zeros(24, 8, dtype=torch.int32)
    begins, lengths = torch.arange(25, dtype=torch.int32), torch.ones(24, dtype=torch.int32)
    dummy = replace(
        replayed,
        query_start_loc=begins, query_start_loc_cpu=begins, seq_lens=lengths, num_reqs=24,
        max_query_len=1, max_seq_len=128, block_table_tensor=table,
    )  # fmt: skip
    settings = config()
    settings.compilation_config.cudagraph_mode = CUDAGraphMode.FULL
    builder = backend.get_builder_cls()(None, ["0"], settings, torch.device("cpu"))
    step = builder.build_for_cudagraph_capture(dummy)
    assert step.max_query_len == 24, "one of the requests may have all tokens"
    query, keys, values = (batch.arguments[name] for name in ("q", "k_cache", "v_cache"))
    out = torch.full_like(query, float("nan"))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    plan = step.plan(LayerFeatures(32**-0.5, (-1, -1), 0.0), query, keys, values)
    begins[1], begins[2:], lengths[2:] = 23, 24, 0
    lengths[:2] = replayed.seq_lens
    table[:2, : replayed.block_table_tensor.shape[1]] = replayed.block_table_tensor
    plan.run(query, keys, values, out, None, None)
    assert torch.allclose(out, batch.expected, rtol=1e-4, atol=1e-4)


def test_a_token_of_chunked_local_attention_sees_its_chunk(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.model_executor.layers.attention import chunked_local_attention

    for module in ("vllm.utils.torch_utils", "vllm.v1.attention.backends.utils"):
        monkeypatch.setattr(f"{module}.PIN_MEMORY", False, raising=False)
    leave_one_config(monkeypatch)
    batch = draw(Case(new=[1], past=[40], heads=(4, 2), head_size=32, window=8), "cpu")
    chunked = chunked_local_attention.create_chunked_local_attention_backend(backend, 32)
    spec = SimpleNamespace(block_size=16)
    builder = chunked.get_builder_cls()(spec, ["0"], config(), torch.device("cpu"))
    step = builder.build(0, common_metadata(batch.arguments, 1))
    query, keys, values = (batch.arguments[name] for name in ("q", "k_cache", "v_cache"))
    out = torch.full_like(query, float("nan"))
    plan = step.plan(LayerFeatures(32**-0.5, (-1, -1), 0.0), query, keys, values)
    plan.run(query, keys, values, out)
    assert torch.allclose(out, batch.expected, rtol=1e-4, atol=1e-4), "8 keys, and its own"
