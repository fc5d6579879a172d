"""vLLM's settings and metadata of a step, as its attention backends get them."""

from types import SimpleNamespace
from typing import Any

import torch


def config() -> Any:
    """Return the settings of a small engine."""
    from vllm.config import CUDAGraphMode

    return SimpleNamespace(
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=1, prefill_context_parallel_size=1
        ),
        kv_transfer_config=None,
        scheduler_config=SimpleNamespace(max_num_seqs=8, max_num_batched_tokens=64),
        model_config=SimpleNamespace(max_model_len=128, rswa_window=None, dtype=torch.bfloat16),
        cache_config=SimpleNamespace(block_size=16, kv_sharing_fast_prefill=False),
        speculative_config=None,
        compilation_config=SimpleNamespace(
            static_forward_context={}, cudagraph_mode=CUDAGraphMode.FULL_AND_PIECEWISE
        ),
    )


def common_metadata(arguments: dict[str, Any], tokens: int) -> Any:
    """Return what a metadata builder gets for a batch."""
    from vllm.v1.attention.backend import CommonAttentionMetadata

    return CommonAttentionMetadata(
        query_start_loc=arguments["cu_seqlens_q"],
        query_start_loc_cpu=arguments["cu_seqlens_q"],
        seq_lens=arguments["seqused_k"],
        num_reqs=len(arguments["seqused_k"]),
        num_actual_tokens=tokens,
        max_query_len=arguments["max_seqlen_q"],
        max_seq_len=arguments["max_seqlen_k"],
        block_table_tensor=arguments["block_table"],
        slot_mapping=arguments.get("slots", torch.zeros(tokens, dtype=torch.int64)),
    )
