"""Public functions: causal attention over a paged cache of keys and values."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ..triton_internals.environment import is_interpreting
from . import dispatch, reference
from .batch import Batch, make_batch
from .kernels import naive
from .plan import Plan

__all__ = ["IMPLEMENTATIONS", "paged_attention", "plan"]

IMPLEMENTATIONS: dict[str, Callable[[Batch], torch.Tensor]] = {
    "auto": dispatch.run,
    "reference": reference.run,
    "naive": naive.run,
    **dispatch.RUNS,
}
"""Functions that compute a batch's attention, by the name that `implementation` takes."""


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
    """Compute causal attention of each sequence's new tokens over all of its tokens.

    The batch may mix decoding, prefill and chunked prefill. Query heads may be grouped (GQA, MQA):
    their number is a multiple of the KV heads.

    Args:
        q: queries of the new tokens, [num_tokens, num_query_heads, head_size], one token at least,
            and head_size at most 256; bfloat16, float16 or float32.
        k_cache: keys of all tokens, [num_blocks, block_size, num_kv_heads, head_size]; q's dtype
            or float8. Only the last dimension must be contiguous.
        v_cache: values, with the shape, dtype and strides of k_cache.
        cu_seqlens_q: index in q of each sequence's first new token, then the number of new tokens,
            [num_seqs + 1], int32.
        seqused_k: number of tokens of each sequence, including the new ones, [num_seqs], int32.
        block_table: each sequence's blocks in the caches, in order, [num_seqs, max_blocks], int32.
        max_seqlen_q: largest number of new tokens of a sequence, or more; 1 to num_tokens.
        max_seqlen_k: largest number of tokens of a sequence, or more; max_seqlen_q to
            max_blocks * block_size.
        softmax_scale: factor of the scores; head_size ** -0.5 if None.
        window_size: how many tokens before and after its own position a query sees; -1 is no
            limit. Attention is causal, so the second number must be 0 or -1.
        softcap: if not 0, scores become softcap * tanh(score / softcap).
        alibi_slopes: per query head, what a score loses per token of distance, [num_query_heads].
        sinks: per query head, the score of an extra token without a value, which only takes part
            in the softmax, [num_query_heads].
        k_scale: factor of the cached keys: a number, or one float32 on the GPU.
        v_scale: factor of the cached values, likewise.
        out: tensor to write to, with the shape and dtype of q; allocated if None.
        implementation: a key of `IMPLEMENTATIONS`; `auto` chooses one by the batch.

    Returns:
        `out`, [num_tokens, num_query_heads, head_size]. Tokens past cu_seqlens_q[-1] are not
        written.

    Raises:
        ValueError: an argument does not fit. Values in GPU memory (lengths, block numbers) are
            checked only if DEJAVU_ATTENTION_CHECK=1 was set when this module was imported; for
            CPU tensors they always are.
    """
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(
            f"implementation: {implementation!r}; expected one of {', '.join(IMPLEMENTATIONS)}"
        )
    _check_device(q, implementation)
    batch = make_batch(
        q, k_cache, v_cache, cu_seqlens_q, seqused_k, block_table, max_seqlen_q, max_seqlen_k,
        softmax_scale, window_size, softcap, alibi_slopes, sinks, k_scale, v_scale, out,
    )  # fmt: skip
    with _on_device(q):
        return IMPLEMENTATIONS[implementation](batch)


def plan(
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
    overlap: bool = True,
) -> Plan:
    """Check and schedule once what all layers of a step share.

    The arguments are those of `paged_attention`; q, k_cache and v_cache are those of any layer.
    Nothing waits for the device, unless DEJAVU_ATTENTION_CHECK=1. Inside a captured graph the
    schedule is made anew at each replay, from the lengths that lie in cu_seqlens_q and seqused_k
    then; max_seqlen_q must still hold.
    Layers run one after the other, on one stream: they share memory for partial results.

    `overlap` says whether a layer's launch on a Hopper GPU may begin while the kernel before it
    ends (programmatic dependent launch); it reads nothing before that kernel has ended.

    Returns:
        A plan, whose `run(q, k_cache, v_cache, out=None)` computes one layer.

    Raises:
        ValueError: an argument does not fit, as in `paged_attention`.
    """
    _check_device(q, "auto")
    batch = make_batch(
        q, k_cache, v_cache, cu_seqlens_q, seqused_k, block_table, max_seqlen_q, max_seqlen_k,
        softmax_scale, window_size, softcap, alibi_slopes, sinks, k_scale, v_scale, None,
    )  # fmt: skip
    batch = batch.with_out(q)  # layers bring an `out` of their own
    with _on_device(q):
        return Plan(batch, overlap)


def _check_device(q: torch.Tensor, implementation: str) -> None:
    if not q.is_cuda and implementation != "reference" and not is_interpreting():
        raise ValueError(
            f"q: on {q.device}; expected it on a GPU, or TRITON_INTERPRET=1 in the environment"
        )


def _on_device(q: torch.Tensor) -> AbstractContextManager[Any]:
    """Return a context in which Triton launches on the queries' device."""
    if not q.is_cuda or q.device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(q.device)
