"""What a call of `paged_attention` was given, checked, and in the form in which the kernels take it."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from typing import Any

import torch

from ..triton_internals.environment import is_interpreting, supported_float8

__all__ = ["Batch", "checked_batch"]

FLOAT8 = {
    torch.float8_e4m3fn: "fp8e4nv",
    torch.float8_e4m3fnuz: "fp8e4b8",
    torch.float8_e5m2: "fp8e5",
}
"""What a cache may hold beside the queries' dtype, and Triton's name for it."""

QUERY_DTYPES = (torch.bfloat16, torch.float16, torch.float32)

UNBOUNDED = 1 << 30
"""A window from here on is none: no sequence is as long, and a token's number plus it must fit 32 bits."""

CHECK_VALUES = os.environ.get("DEJAVU_ATTENTION_CHECK", "0") not in ("", "0")
"""Whether what lies in GPU memory is checked too. Read once: every launch asks."""


@dataclass(eq=False)
class Batch:
    """A checked call, not to be changed. Shapes as in `paged_attention`; sizes are tokens unless named otherwise.

    One is made at every call: to have Python freeze it would take longer than to check some tensors.
    """

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    out: torch.Tensor
    cu_seqlens_q: torch.Tensor
    seqused_k: torch.Tensor
    block_table: torch.Tensor
    max_seqlen_q: int
    max_seqlen_k: int
    softmax_scale: float
    window: int
    """How many keys before its own position a query sees; -1: all."""
    softcap: float
    alibi_slopes: torch.Tensor | None
    sinks: torch.Tensor | None
    k_scale: torch.Tensor | None
    v_scale: torch.Tensor | None

    @cached_property
    def num_tokens(self) -> int:
        return self.q.shape[0]

    @cached_property
    def num_seqs(self) -> int:
        return self.seqused_k.shape[0]

    @cached_property
    def kv_heads(self) -> int:
        return self.k_cache.shape[2]

    @cached_property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.q.shape[1] // self.k_cache.shape[2]

    @cached_property
    def head_padded(self) -> int:
        """The head size as the kernels' tiles hold it: the next power of two, at least 16."""
        return max(16, 1 << (self.q.shape[2] - 1).bit_length())

    @cached_property
    def decode_share(self) -> int:
        """Per cent of the sequences with one query token: as many as the batch's three sizes allow."""
        longer = math.ceil(max(self.num_tokens - self.num_seqs, 0) / max(self.max_seqlen_q - 1, 1))
        return 100 * (self.num_seqs - min(longer, self.num_seqs)) // self.num_seqs

    def q_blocks(self, block_q: int) -> int:
        """How many Q blocks of so many tokens there can be at most, numbered as `find_sequence` does."""
        return self.num_tokens // block_q + self.num_seqs

    @property
    def inputs(self) -> tuple[Any, ...]:
        """The kernels' parameters from `q` to `decode_share`."""
        q, cache = self.q, self.k_cache
        return (
            q, cache, self.v_cache, self.cu_seqlens_q, self.seqused_k, self.block_table,
            self.alibi_slopes, self.sinks, self.k_scale, self.v_scale, self.softmax_scale, self.softcap,
            q.stride(0), q.stride(1), cache.stride(0), cache.stride(1), cache.stride(2), self.block_table.stride(0),
            *self.composition,
        )  # fmt: skip

    @property
    def composition(self) -> tuple[int, int, int, int]:
        """Sequences, new tokens of one on average, the most tokens of one, and the share of decoding ones."""
        return (
            self.num_seqs,
            max(self.num_tokens // self.num_seqs, 1),
            self.max_seqlen_k,
            self.decode_share,
        )

    @cached_property
    def shape(self) -> dict[str, Any]:
        """The kernels' compile-time parameters that the call decides."""
        return {
            "KV_HEADS": self.kv_heads,
            "GROUP": self.group,
            "HEAD": self.q.shape[2],
            "HEAD_PADDED": self.head_padded,
            "PAGE": self.k_cache.shape[1],
            "WINDOW": self.window,
            "SOFTCAP": self.softcap > 0,
            "PRECISION": _precision(self.q),
        }


def _precision(q: torch.Tensor) -> str:
    """How float32 is multiplied: three times in tf32 where the hardware has it, which keeps 1e-6."""
    return "tf32x3" if q.dtype == torch.float32 and torch.version.hip is None else "ieee"


def checked_batch(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    seqused_k: torch.Tensor,
    block_table: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float | None,
    window_size: tuple[int, int],
    softcap: float,
    alibi_slopes: torch.Tensor | None,
    sinks: torch.Tensor | None,
    k_scale: torch.Tensor | float | None,
    v_scale: torch.Tensor | float | None,
    out: torch.Tensor | None,
) -> Batch:
    """The call as a `Batch`.

    Raises:
        ValueError: an argument does not fit; it names the argument, what it is and what it should be.
    """
    _check_tensors(q, k_cache, v_cache)
    _check_lengths(q, k_cache, cu_seqlens_q, seqused_k, block_table, max_seqlen_q, max_seqlen_k)
    _check_per_head("alibi_slopes", alibi_slopes, q)
    _check_per_head("sinks", sinks, q)
    if out is None:
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
    else:
        _check_out(out, q)
    scale = (
        q.shape[2] ** -0.5 if softmax_scale is None else _positive("softmax_scale", softmax_scale)
    )
    batch = Batch(
        q=q,
        k_cache=k_cache,
        v_cache=v_cache,
        out=out,
        cu_seqlens_q=cu_seqlens_q,
        seqused_k=seqused_k,
        block_table=block_table,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        softmax_scale=scale,
        window=_window(window_size),
        softcap=_positive("softcap", softcap) if softcap != 0 else 0.0,
        alibi_slopes=alibi_slopes,
        sinks=sinks,
        k_scale=_scale("k_scale", k_scale, q),
        v_scale=_scale("v_scale", v_scale, q),
    )
    if CHECK_VALUES or not q.is_cuda:
        _check_values(batch)
    return batch


def _said(tensor: torch.Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{dtype}{list(tensor.shape)} with strides {list(tensor.stride())} on {tensor.device}"


def _check_tensors(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor) -> None:
    if q.dim() != 3 or 0 in q.shape:
        raise ValueError(
            f"q: {_said(q)}; expected [num_tokens, num_query_heads, head_size], none of them 0"
        )
    if q.dtype not in QUERY_DTYPES:
        raise ValueError(f"q: {_said(q)}; expected bfloat16, float16 or float32")
    if q.dtype == torch.bfloat16 and is_interpreting():
        raise ValueError(
            f"q: {_said(q)}; Triton's interpreter cannot multiply bfloat16: use float16 or float32 there"
        )
    if q.shape[2] > 256:
        raise ValueError(f"q: {_said(q)}; head sizes up to 256 are supported")
    if k_cache.dim() != 4 or 0 in k_cache.shape:
        raise ValueError(
            f"k_cache: {_said(k_cache)}; expected [num_blocks, block_size, num_kv_heads, head_size], none of them 0"
        )
    if k_cache.shape[3] != q.shape[2]:
        raise ValueError(f"k_cache: {_said(k_cache)}; expected head_size {q.shape[2]}, as in q")
    if q.shape[1] % k_cache.shape[2]:
        raise ValueError(
            f"k_cache: {_said(k_cache)}; q's {q.shape[1]} heads are no multiple of its {k_cache.shape[2]} heads"
        )
    if k_cache.dtype != q.dtype and k_cache.dtype not in _readable(q.device):
        able = ", ".join(
            str(each).removeprefix("torch.") for each in (q.dtype, *_readable(q.device))
        )
        raise ValueError(
            f"k_cache: {_said(k_cache)}; expected one of what Triton reads on {q.device}: {able}"
        )
    if (
        v_cache.shape != k_cache.shape
        or v_cache.dtype != k_cache.dtype
        or v_cache.stride() != k_cache.stride()
    ):
        raise ValueError(f"v_cache: {_said(v_cache)}; expected it like k_cache: {_said(k_cache)}")
    for name, tensor in (("q", q), ("k_cache", k_cache), ("v_cache", v_cache)):
        if tensor.stride(-1) != 1:
            raise ValueError(f"{name}: {_said(tensor)}; expected the last dimension contiguous")
        if tensor.device != q.device:
            raise ValueError(f"{name}: {_said(tensor)}; expected it on {q.device}, as q")
        _check_span(name, tensor)


@cache
def _readable(device: torch.device) -> tuple[torch.dtype, ...]:
    """The float8 that kernels can read on a device."""
    if is_interpreting():
        return torch.float8_e4m3fn, torch.float8_e5m2
    if device.type != "cuda":  # for `reference`, and to compile for GPUs that are elsewhere
        return tuple(FLOAT8)
    with torch.cuda.device(device):
        names = supported_float8()
    return tuple(dtype for dtype, name in FLOAT8.items() if name in names)


def _check_per_head(name: str, each: torch.Tensor | None, q: torch.Tensor) -> None:
    if each is None:
        return
    if (
        each.shape != (q.shape[1],)
        or each.device != q.device
        or each.stride(0) != 1
        or not each.is_floating_point()
    ):
        raise ValueError(
            f"{name}: {_said(each)}; expected a float per query head, [{q.shape[1]}], contiguous, on {q.device}"
        )


def _check_out(out: torch.Tensor, q: torch.Tensor) -> None:
    if out.shape != q.shape or out.dtype != q.dtype or out.device != q.device or out.stride(2) != 1:
        raise ValueError(
            f"out: {_said(out)}; expected it like q: {_said(q)}, its last dimension contiguous"
        )
    if (out.stride(0) == 0 and len(out) > 1) or (out.stride(1) == 0 and out.shape[1] > 1):
        raise ValueError(f"out: {_said(out)}; expected memory of its own for each token and head")
    _check_span("out", out)


def _check_span(name: str, tensor: torch.Tensor) -> None:
    """The kernels' offsets inside a block or a token have 32 bits."""
    if tensor.shape[1] * tensor.stride(1) >= 1 << 31:
        raise ValueError(
            f"{name}: {_said(tensor)}; its second dimension must span less than 2^31 elements"
        )


def _positive(name: str, value: float) -> float:
    if isinstance(value, (int, float)) and math.isfinite(value) and value > 0:
        return float(value)
    raise ValueError(f"{name}: {value!r}; expected a positive number")


def _check_lengths(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    seqused_k: torch.Tensor,
    block_table: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
) -> None:
    if seqused_k.dim() != 1 or seqused_k.shape[0] == 0:
        raise ValueError(f"seqused_k: {_said(seqused_k)}; expected [num_seqs], at least one")
    num_seqs = seqused_k.shape[0]
    if cu_seqlens_q.shape != (num_seqs + 1,):
        raise ValueError(
            f"cu_seqlens_q: {_said(cu_seqlens_q)}; expected [num_seqs + 1], [{num_seqs + 1}]"
        )
    if block_table.dim() != 2 or block_table.shape[0] != num_seqs:
        raise ValueError(
            f"block_table: {_said(block_table)}; expected [num_seqs, …], [{num_seqs}, …]"
        )
    for name, tensor in (
        ("cu_seqlens_q", cu_seqlens_q),
        ("seqused_k", seqused_k),
        ("block_table", block_table),
    ):
        if tensor.dtype != torch.int32 or tensor.stride(-1) != 1 or tensor.device != q.device:
            raise ValueError(
                f"{name}: {_said(tensor)}; expected int32 on {q.device}, its last dimension contiguous"
            )
    for name, value in (("max_seqlen_q", max_seqlen_q), ("max_seqlen_k", max_seqlen_k)):
        if not isinstance(value, int):
            raise ValueError(f"{name}: {value!r}; expected an int")
    if not 1 <= max_seqlen_q <= q.shape[0]:
        raise ValueError(f"max_seqlen_q: {max_seqlen_q}; expected 1 to q's {q.shape[0]} tokens")
    room = block_table.shape[1] * k_cache.shape[1]
    if not max_seqlen_q <= max_seqlen_k <= room:
        raise ValueError(
            f"max_seqlen_k: {max_seqlen_k}; expected max_seqlen_q, {max_seqlen_q}, to what a row of block_table holds: "
            f"{block_table.shape[1]} blocks of {k_cache.shape[1]} tokens"
        )


def _window(window_size: tuple[int, int]) -> int:
    if not (
        isinstance(window_size, (tuple, list))
        and [type(side) for side in window_size] == [int, int]
    ):
        raise ValueError(f"window_size: {window_size!r}; expected two ints, as (-1, -1)")
    left, right = window_size
    if right not in (-1, 0):
        raise ValueError(
            f"window_size: {tuple(window_size)}; attention is causal: the right side must be 0 or -1"
        )
    if left < -1:
        raise ValueError(
            f"window_size: {tuple(window_size)}; the left side must be -1, for none, or more"
        )
    return left if left < UNBOUNDED else -1


def _scale(name: str, scale: torch.Tensor | float | None, q: torch.Tensor) -> torch.Tensor | None:
    if scale is None:
        return None
    if not isinstance(scale, torch.Tensor):
        return torch.full((1,), _positive(name, scale), dtype=torch.float32, device=q.device)
    if scale.numel() != 1 or scale.dtype != torch.float32 or scale.device != q.device:
        raise ValueError(f"{name}: {_said(scale)}; expected a number, or one float32 on {q.device}")
    return scale


def _check_values(batch: Batch) -> None:
    """What can be seen only by reading the tensors: the GPU must be waited for."""
    begins = batch.cu_seqlens_q.tolist()
    queries = [after - before for before, after in pairwise(begins)]
    keys = batch.seqused_k.tolist()
    if (
        begins[0] != 0
        or begins[-1] > batch.num_tokens
        or min(queries) < 0
        or max(queries) > batch.max_seqlen_q
    ):
        raise ValueError(
            f"cu_seqlens_q: {begins}; expected it to rise from 0 to q's {batch.num_tokens} tokens "
            f"in steps of at most max_seqlen_q, {batch.max_seqlen_q}"
        )
    page, num_blocks = batch.k_cache.shape[1], batch.k_cache.shape[0]
    for index, (query, key) in enumerate(zip(queries, keys, strict=True)):
        if query == 0:  # padding, as in a captured graph
            continue
        if not query <= key <= batch.max_seqlen_k:
            raise ValueError(
                f"seqused_k: {key} at {index}; expected the sequence's {query} new tokens to max_seqlen_k, "
                f"{batch.max_seqlen_k}"
            )
        used = batch.block_table[index, : math.ceil(key / page)]
        outside = used[(used < 0) | (used >= num_blocks)]
        if outside.numel():
            raise ValueError(
                f"block_table: {int(outside[0])} in row {index}; expected blocks of the cache, 0 to {num_blocks - 1}"
            )
