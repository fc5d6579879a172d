"""`paged_attention`: causal attention over a paged cache of keys and values."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..triton_internals.environment import is_interpreting
from . import dispatch as auto
from . import reference
from .batch import Batch, checked_batch
from .kernels import hopper, naive, qblock, segmented, static_grid

__all__ = ["IMPLEMENTATIONS", "paged_attention"]

IMPLEMENTATIONS: dict[str, Callable[[Batch], torch.Tensor]] = {
    "auto": auto.run,
    "reference": reference.run,
    "naive": naive.run,
    "qblock": qblock.run,
    "segmented": segmented.run,
    "static_grid": static_grid.run,
    "hopper": hopper.run,
}


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    *,
    cu_seqlens_q: torch.Tensor,
    seqused_k: torch.Tensor,
    block_table: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    k_scale: torch.Tensor | float | None = None,
    v_scale: torch.Tensor | float | None = None,
    out: torch.Tensor | None = None,
    implementation: str = "auto",
) -> torch.Tensor:
    """Causal attention of each sequence's new tokens over all of its tokens so far.

    Any mix of decoding, prefill and chunked prefill; heads may be grouped (GQA, MQA) in any ratio.

    Args:
        q: the new tokens' queries, [num_tokens, num_query_heads, head_size]; bfloat16, float16 or float32.
        k_cache: keys, [num_blocks, block_size, num_kv_heads, head_size], the new tokens' among them; of q's
            dtype, or float8. Its strides may be any, but for the last dimension.
        v_cache: values, in shape and strides like k_cache.
        cu_seqlens_q: where each sequence's new tokens begin in q, then their number, [num_seqs + 1], int32.
        seqused_k: how many tokens each sequence has, the new ones among them, [num_seqs], int32.
        block_table: each sequence's blocks in the caches, in order, [num_seqs, max_blocks], int32.
        max_seqlen_q: the most new tokens of a sequence. max_seqlen_k: the most tokens.
        softmax_scale: of the scores; head_size ** -0.5 if None.
        window_size: how many tokens before and after its own a query sees; (-1, -1): all before. There is
            nothing to see after it, so the second is 0 or -1.
        softcap: if not 0, scores are softcap * tanh(score / softcap).
        alibi_slopes: per query head, what a score loses for each token of distance, [num_query_heads].
        sinks: per query head, the score of a token that takes its share and gives nothing, [num_query_heads].
        k_scale, v_scale: what the caches' values are to be multiplied by: a number, or one float32 on the GPU.
        out: where to write, in shape and dtype like q; else it is made.
        implementation: `auto`, or one of `IMPLEMENTATIONS`.

    Returns:
        `out`, [num_tokens, num_query_heads, head_size]. Tokens past cu_seqlens_q[-1] are not written.

    Raises:
        ValueError: an argument does not fit. What can only be seen by reading GPU memory (lengths, block
            numbers) is checked for tensors of the CPU, and if DEJAVU_ATTENTION_CHECK=1 when this is imported.
    """
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(
            f"implementation: {implementation!r}; expected one of {', '.join(IMPLEMENTATIONS)}"
        )
    if not q.is_cuda and implementation != "reference" and not is_interpreting():
        raise ValueError(
            f"q: on {q.device}; expected it on a GPU, or TRITON_INTERPRET=1 in the environment"
        )
    batch = checked_batch(
        q, k_cache, v_cache, cu_seqlens_q, seqused_k, block_table, max_seqlen_q, max_seqlen_k,
        softmax_scale, window_size, softcap, alibi_slopes, sinks, k_scale, v_scale, out,
    )  # fmt: skip
    run = IMPLEMENTATIONS[implementation]
    if not q.is_cuda or q.device.index == torch.cuda.current_device():
        return run(batch)
    with torch.cuda.device(q.device):  # Triton launches on the current one
        return run(batch)
