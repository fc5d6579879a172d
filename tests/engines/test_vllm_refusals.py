"""What the attention backend does not do is refused by name, and no hook is overlooked."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import fields
from functools import partial
from inspect import signature
from typing import Any

import pytest
import torch
from support.attention_batches import Case, draw
from support.vllm_engine import common_metadata, config

vllm = pytest.importorskip("vllm")
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="tests the host's part, interpreted"),
]


@pytest.mark.parametrize(
    ("options", "parallel", "name"),
    [
        ({"attn_type": "encoder_only"}, {}, "attention of type"),
        ({"attn_type": "encoder_decoder"}, {}, "attention of type"),
        ({}, {"decode_context_parallel_size": 2}, "decode context parallelism"),
        ({}, {"prefill_context_parallel_size": 2}, "prefill context parallelism"),
        ({"use_alibi_sqrt": True}, {}, "use_alibi_sqrt"),
        ({"chunk_lookback": 4}, {}, "chunk_lookback"),
    ],
)
def test_what_is_not_done_is_refused_by_name(
    make: Any, options: dict[str, Any], parallel: dict[str, int], name: str
) -> None:
    with pytest.raises(NotImplementedError, match=name):
        make(config(**parallel), **options)


@pytest.mark.parametrize(
    ("part", "option", "name"),
    [
        ("cache_config", {"kv_sharing_fast_prefill": True}, "fast prefill"),
        ("model_config", {"rswa_window": 128}, "reference sliding window"),
    ],
)
def test_options_of_the_engine_are_refused_by_name(
    make: Any, part: str, option: dict[str, Any], name: str
) -> None:
    settings = config()
    vars(getattr(settings, part)).update(option)
    with pytest.raises(NotImplementedError, match=name):
        make(settings)


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
    make = partial(backend.get_builder_cls(), kind(**sizes, **options))
    with pytest.raises(NotImplementedError, match=name) if name else nullcontext():
        make(["0"], config(), torch.device("cpu"))


def accepted_configuration() -> dict[str, Any]:
    from vllm.platforms.interface import DeviceCapability

    return {
        "head_size": 128,
        "dtype": torch.bfloat16,
        "kv_cache_dtype": "fp8",
        "block_size": 16,
        "use_mla": False,
        "has_sink": True,
        "use_sparse": False,
        "use_mm_prefix": False,
        "use_per_head_quant_scales": False,
        "device_capability": DeviceCapability(9, 0),
        "attn_type": "decoder",
    }


def test_vllm_refuses_configurations_by_the_backend_s_own_word(backend: Any) -> None:
    accepted = accepted_configuration()
    assert backend.validate_configuration(**accepted) == []
    refused = {
        "head_size": 512,
        "kv_cache_dtype": "nvfp4",
        "block_size": 8,
        "use_mla": True,
        "use_sparse": True,
        "use_mm_prefix": True,
        "use_per_head_quant_scales": True,
        "use_non_causal": True,
        "device_capability": accepted["device_capability"]._replace(major=7, minor=5),
        "attn_type": "encoder",
    }
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
    batch = draw(Case(new=[1, 5], past=[40, 9], heads=(4, 2), head_size=32), "cpu")
    common = common_metadata(batch.arguments, 6)
    builder = backend.get_builder_cls()(None, ["0"], config(), torch.device("cpu"))
    for name, value in feature.items():
        setattr(common, name, value)
    with pytest.raises(NotImplementedError):
        builder.build(0, common)


INHERITED = {
    # what the backend is not, by vLLM's own default
    *("is_mla", "is_sparse", "is_ssm", "supports_alibi_sqrt", "supports_batch_invariance"),
    *("supports_mm_prefix", "supports_non_causal", "supports_non_causal_dcp", "supports_rswa"),
    *("supports_per_head_quant_scales", "supports_kv_cache_update_bypass"),
    # made of what the backend says
    *("full_cls_name", "get_preferred_block_size", "get_kv_cache_block_dim", "supports_block_size"),
    *("indexes_kv_by_block_stride", "supports_attn_type", "supports_dtype", "supports_dcp"),
    *("supports_kv_cache_dtype", "supports_pcp", "validate_configuration"),
    *("get_required_kv_cache_layout", "get_supported_head_sizes", "customize_spec"),
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

    own = [
        (backend, bases.AttentionBackend),
        (make(), bases.AttentionImpl),
        (backend.get_builder_cls(), bases.AttentionMetadataBuilder),
    ]
    for ours, base in own:
        kind = ours if isinstance(ours, type) else type(ours)
        parents = [parent for parent in base.__mro__ if parent.__module__ == bases.__name__]
        known = {name for parent in parents for name in attributes(parent)}
        defined = {*vars(kind), *vars(ours)}
        unknown = {name for name in known - defined - INHERITED if not name.startswith("__")}
        assert unknown <= {"_abc_impl"}, base.__name__
