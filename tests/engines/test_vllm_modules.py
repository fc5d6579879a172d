"""The attention backend inside vLLM's own modules, 0.22 to 0.33, and what it refuses by name."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import fields, replace
from importlib.util import find_spec
from inspect import signature
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.attention_batches import Case, Drawn, draw, take_new_tokens
from support.vllm_engine import common_metadata, config

vllm = pytest.importorskip("vllm")
pytestmark = [
    pytest.mark.usefixtures("one_config"),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="tests the host's part, interpreted"),
]

from dejavu_cache.engines.vllm.planned_attention import LayerFeatures, LayerShape, ServingLimits  # noqa: E402

HAS_LAYOUTS = find_spec("vllm.v1.kv_cache_layout") is not None
"""Whether vLLM chooses how a cache lies in memory, as from 0.29 on."""

CASE = Case(new=[1, 5], past=[40, 9], heads=(4, 2), head_size=32, padding=2, window=20)
SHORT = replace(CASE, padding=0, window=-1)


def builder_of(backend: Any, settings: Any = None, group: Any = None, layer: str = "0") -> Any:
    """Return what makes the steps of a layer's batches."""
    return backend.get_builder_cls()(group, [layer], settings or config(), torch.device("cpu"))


def check_rows(out: torch.Tensor, batch: Drawn) -> None:
    """Check the rows of a batch's tokens; those behind them are of a padded graph."""
    tokens = len(batch.expected)
    assert torch.allclose(out[:tokens], batch.expected, rtol=1e-4, atol=1e-4)


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
    begun, warmed, waiting = (list[Any]() for _ in range(3))

    def begin(*layer: Any) -> Any:
        begun.append(layer)
        return SimpleNamespace(finish=lambda: warmed.append(layer))

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("dejavu_cache.engines.vllm.backend.begin_warm_up", begin)
    monkeypatch.setattr("dejavu_cache.engines.vllm.backend.warm_up_when_loaded", waiting.append)
    settings = config()
    settings.speculative_config = SimpleNamespace(num_speculative_tokens=3)
    layer = make(settings, kv_cache_dtype="fp8")
    assert (len(begun), begun[0][0].page) == (1, 16), "while weights are loaded"
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
    builder_of(backend, settings, group, "layers.0")
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


@pytest.mark.parametrize(
    ("padding", "options", "scale"),
    [
        (0, {}, None),
        (2, {}, None),
        (0, {"kv_sharing_target_layer_name": "0"}, None),
        # As vLLM's models of Transformers set it, up to 0.26 in each forward pass.
        (0, {"scale": 1.0}, 32**-0.5),
    ],
    ids=["a layer", "padded", "another layer's cache", "a scale that is set later"],
)
def test_a_layer_reads_keys_that_are_in_the_cache_already(
    backend: Any, make: Any, padding: int, options: dict[str, Any], scale: float | None
) -> None:
    batch = draw(CASE, "cpu")
    query = batch.arguments["q"]
    layer = make(sliding_window=CASE.window + 1, **options)
    layer.scale = scale or layer.scale
    step = builder_of(backend).build(0, common_metadata(batch.arguments, len(query)))
    queries = torch.cat([query, query[:padding]])
    out = torch.full_like(queries, float("nan"))
    layer.forward(None, queries, None, None, engine_cache(backend, batch.arguments), step, out)
    check_rows(out, batch)


def test_a_step_is_computed_through_vllm_s_interface(backend: Any, make: Any) -> None:
    layer = make(sliding_window=CASE.window + 1)
    layer.process_weights_after_loading(torch.float32)
    batch = draw(CASE, "cpu")
    new = take_new_tokens(batch.arguments)
    arguments = {**batch.arguments, "slots": new.slots}
    cache = engine_cache(backend, arguments)
    tokens = len(arguments["q"])
    apart = arguments["q"], new.keys, new.values
    query, keys, values = (torch.cat([rows, rows[:2]]) for rows in apart)
    out = torch.full_like(query, float("nan"))
    builder = builder_of(backend)
    assert builder.get_cudagraph_support(config(), None).name == "ALWAYS"
    common = common_metadata(arguments, tokens)
    step = builder.build(0, common)
    scales = SimpleNamespace(_k_scale=torch.ones(()), _v_scale=torch.ones(()))
    layer.forward(scales, query, keys, values, cache, step, out)
    check_rows(out, batch)
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

    batch = draw(replace(SHORT, new=[23, 1]), "cpu")
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
    step = builder_of(backend, settings).build_for_cudagraph_capture(dummy)
    assert step.max_query_len == 24, "one of the requests may have all tokens"
    query, keys, values = (batch.arguments[name] for name in ("q", "k_cache", "v_cache"))
    out = torch.full_like(query, float("nan"))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    plan = step.plan(LayerFeatures(32**-0.5, (-1, -1), 0.0), query, keys, values)
    begins[1], begins[2:], lengths[2:] = 23, 24, 0
    lengths[:2] = replayed.seq_lens
    table[:2, : replayed.block_table_tensor.shape[1]] = replayed.block_table_tensor
    plan.run(query, keys, values, out, None, None)
    check_rows(out, batch)


def test_a_token_of_chunked_local_attention_sees_its_chunk(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.model_executor.layers.attention import chunked_local_attention

    for module in ("vllm.utils.torch_utils", "vllm.v1.attention.backends.utils"):
        monkeypatch.setattr(f"{module}.PIN_MEMORY", False, raising=False)
    batch = draw(replace(SHORT, new=[1], past=[40], window=8), "cpu")  # 8 keys, and its own
    chunked = chunked_local_attention.create_chunked_local_attention_backend(backend, 32)
    builder = builder_of(chunked, group=SimpleNamespace(block_size=16))
    step = builder.build(0, common_metadata(batch.arguments, 1))
    query, keys, values = (batch.arguments[name] for name in ("q", "k_cache", "v_cache"))
    out = torch.full_like(query, float("nan"))
    plan = step.plan(LayerFeatures(32**-0.5, (-1, -1), 0.0), query, keys, values)
    plan.run(query, keys, values, out)
    check_rows(out, batch)


@pytest.mark.parametrize(
    ("part", "options", "name"),
    [
        ("layer", {"attn_type": "encoder_only"}, "attention of type"),
        ("layer", {"attn_type": "encoder_decoder"}, "attention of type"),
        ("layer", {"use_alibi_sqrt": True}, "use_alibi_sqrt"),
        ("layer", {"chunk_lookback": 4}, "chunk_lookback"),
        ("parallel_config", {"decode_context_parallel_size": 2}, "decode context parallelism"),
        ("parallel_config", {"prefill_context_parallel_size": 2}, "prefill context parallelism"),
        ("cache_config", {"kv_sharing_fast_prefill": True}, "fast prefill"),
        ("model_config", {"rswa_window": 128}, "reference sliding window"),
    ],
)
def test_what_is_not_done_is_refused_by_name(
    make: Any, part: str, options: dict[str, Any], name: str
) -> None:
    settings = config()
    if part != "layer":
        vars(getattr(settings, part)).update(options)
        options = {}
    with pytest.raises(NotImplementedError, match=name):
        make(settings, **options)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, ""),
        ({"head_size_v": 64}, "keys of 32 beside values of 64"),
        ({"sink_len": 128}, "tokens that every request sees"),
        ({"non_causal": True}, "not causal"),
    ],
)
def test_caches_that_the_kernels_do_not_read_are_refused_by_name(
    backend: Any, options: dict[str, Any], name: str
) -> None:
    from vllm.v1 import kv_cache_interface as specs

    kind = specs.SinkFullAttentionSpec if "sink_len" in options else specs.FullAttentionSpec
    if not options.keys() <= {field.name for field in fields(kind)}:
        pytest.skip("this version has none")
    sizes = {"block_size": 16, "num_kv_heads": 2, "head_size": 32, "dtype": torch.float16}
    with pytest.raises(NotImplementedError, match=name) if name else nullcontext():
        builder_of(backend, group=kind(**sizes, **options))


NOT_DONE = "use_mla", "use_sparse", "use_mm_prefix", "use_per_head_quant_scales"


def accepted_configuration() -> dict[str, Any]:
    from vllm.platforms.interface import DeviceCapability

    accepted: dict[str, Any] = dict.fromkeys(NOT_DONE, False)
    accepted |= {"head_size": 128, "dtype": torch.bfloat16, "kv_cache_dtype": "fp8"}
    accepted |= {"block_size": 16, "has_sink": True, "attn_type": "decoder"}
    return accepted | {"device_capability": DeviceCapability(9, 0)}


def test_vllm_refuses_configurations_by_the_backend_s_own_word(backend: Any) -> None:
    accepted = accepted_configuration()
    assert backend.validate_configuration(**accepted) == []
    refused: dict[str, Any] = dict.fromkeys((*NOT_DONE, "use_non_causal"), True)
    refused |= {"head_size": 512, "kv_cache_dtype": "nvfp4", "block_size": 8}
    older = accepted["device_capability"]._replace(major=7, minor=5)
    refused |= {"attn_type": "encoder", "device_capability": older}
    for name, value in refused.items():
        assert len(backend.validate_configuration(**{**accepted, name: value})) == 1, name
    accepted["kv_cache_dtype"] = "bfloat16"
    assert backend.validate_configuration(**accepted) == []
    (reason,) = backend.validate_configuration(**{**accepted, "dtype": torch.float16})
    assert reason == "kv_cache_dtype bfloat16 beside queries of torch.float16 not supported"


def test_every_feature_that_vllm_asks_of_a_backend_has_an_answer(backend: Any) -> None:
    served = {"has_sink", "has_sliding_window", "use_adaptive_verification"}
    parameters = signature(backend.validate_configuration).parameters
    asked = {name for name in parameters if name.startswith(("has_", "use_"))}
    asked -= {"use_dcp"}  # a layer refuses it, whatever the version asks
    for name in asked:
        reasons = backend.validate_configuration(**{**accepted_configuration(), name: True})
        assert bool(reasons) == (name not in served), (name, reasons)
    assert asked >= {"use_mla", "use_sparse"}


@pytest.mark.parametrize("feature", [{"causal": False}, {"mm_req_doc_ranges": {0: [(0, 4)]}}])
def test_a_step_that_is_not_causal_is_refused(backend: Any, feature: dict[str, Any]) -> None:
    common = common_metadata(draw(SHORT, "cpu").arguments, 6)
    vars(common).update(feature)
    with pytest.raises(NotImplementedError):
        builder_of(backend).build(0, common)


INHERITED = {
    # what the backend is not, by vLLM's own default
    *("is_mla", "is_sparse", "is_ssm", "supports_alibi_sqrt", "supports_batch_invariance"),
    *("supports_mm_prefix", "supports_non_causal", "supports_non_causal_dcp", "supports_rswa"),
    *("supports_per_head_quant_scales", "supports_kv_cache_update_bypass"),
    # made of what the backend says
    *("full_cls_name", "get_preferred_block_size", "get_kv_cache_block_dim", "supports_block_size"),
    *("indexes_kv_by_block_stride", "supports_attn_type", "supports_dtype", "supports_dcp"),
    *("supports_kv_cache_dtype", "supports_pcp", "validate_configuration", "customize_spec"),
    *("get_required_kv_cache_layout", "supported_kv_cache_layouts", "get_supported_head_sizes"),
    "supports_device_cpu_query_lens_mismatch",  # lengths are read on the device
    # fused operations that a layer leaves to vLLM
    *("fused_output_quant_supported", "fused_rope_kvcache_supported", "set_interleaved_v_cache"),
    *("fused_qk_norm_rope_kvcache_supported", "fused_qk_norm_mrope_kvcache_supported"),
    *("do_rope_and_kv_cache_update", "do_qk_norm_rope_kvcache_update"),
    *("do_qk_norm_mrope_kvcache_update", "supports_quant_query_input"),
    # of context parallelism and MLA
    *("can_return_lse_for_decode", "need_to_return_lse_for_decode", "lse_base_on_e"),
    *("dcp_rank", "dcp_world_size", "pcp_rank", "pcp_world_size", "total_cp_rank"),
    *("total_cp_world_size", "supports_mtp_with_cp_non_trivial_interleave_size"),
    "supports_dense_mha_prefill",
    # nothing to prepare, reorder or update beside `build`
    *("get_impl_variants", "prepare_for_batch", "kv_quant_mode", "build_for_drafting"),
    *("get_cudagraph_support", "get_varlen_cudagraph_max_query_len", "reorder_batch_threshold"),
    *("_init_reorder_batch_threshold", "requires_block_table_width", "use_cascade_attention"),
    *("supports_update_block_table", "update_block_table"),
    *("supports_draft_decode_metadata_update", "update_draft_decode_metadata"),
}
"""Attributes of vLLM's base classes that the backend leaves as they are, from 0.22 to 0.33."""


def attributes(kind: type) -> set[str]:
    return {*vars(kind), *vars(kind).get("__annotations__", {})}


def test_every_attribute_that_vllm_knows_is_the_backend_s_or_inherited_on_purpose(
    backend: Any, make: Any
) -> None:
    from vllm.v1.attention import backend as bases

    builder = backend.get_builder_cls(), bases.AttentionMetadataBuilder
    own = [(backend, bases.AttentionBackend), (make(), bases.AttentionImpl), builder]
    for ours, base in own:
        kind = ours if isinstance(ours, type) else type(ours)
        parents = [parent for parent in base.__mro__ if parent.__module__ == bases.__name__]
        known = {name for parent in parents for name in attributes(parent)}
        defined = {*vars(kind), *vars(ours)}
        unknown = {name for name in known - defined - INHERITED if not name.startswith("__")}
        assert unknown <= {"_abc_impl"}, base.__name__
