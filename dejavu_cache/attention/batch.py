"""Validated arguments of a `paged_attention` call, in the form that the kernels take.

Checks of the arguments of `paged_attention`.

Each error names the argument, its value and what is expected.

Class `TensorForm`: what a planned launch takes for granted of a tensor.
"""

from __future__ import annotations

import math
import os
from copy import copy
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import torch

from ..system.fork_lock import cached_property
from ..triton_internals.environment import is_interpreting, supported_float8
from ..triton_internals.identity import dtype_name
from .layer_tensors import LayerTensors, Scales

__all__ = [
    "FLOAT8",
    "Batch",
    "TensorForm",
    "check_lengths",
    "check_out",
    "check_per_head",
    "check_tensors",
    "form_of",
    "has_form",
    "make_batch",
    "positive_number",
    "scale_tensor",
    "window_length",
]


FLOAT8 = {
    torch.float8_e4m3fn: "fp8e4nv",
    torch.float8_e4m3fnuz: "fp8e4b8",
    torch.float8_e5m2: "fp8e5",
}
"""Float8 dtypes that a cache may have instead of the queries' dtype, with Triton's names."""

QUERY_DTYPES = (torch.bfloat16, torch.float16, torch.float32)

UNBOUNDED = 1 << 30
"""Windows this large count as none; no sequence is as long, and position + window fits 32 bits."""


def _describe(tensor: torch.Tensor) -> str:
    dtype = dtype_name(tensor.dtype)
    return f"{dtype}{list(tensor.shape)} with strides {list(tensor.stride())} on {tensor.device}"


def check_tensors(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor) -> None:
    """Raise a ValueError if the queries, keys and values do not fit each other or the device."""
    _check_queries(q)
    _check_keys(k_cache, q)
    if (
        v_cache.shape != k_cache.shape
        or v_cache.dtype != k_cache.dtype
        or v_cache.stride() != k_cache.stride()
    ):
        raise ValueError(
            f"v_cache: {_describe(v_cache)}; expected it like k_cache: {_describe(k_cache)}"
        )
    for name, tensor in (("q", q), ("k_cache", k_cache), ("v_cache", v_cache)):
        if tensor.stride(-1) != 1:
            raise ValueError(f"{name}: {_describe(tensor)}; expected the last dimension contiguous")
        if tensor.device != q.device:
            raise ValueError(f"{name}: {_describe(tensor)}; expected it on {q.device}, as q")
        _check_span(name, tensor)


def _check_queries(q: torch.Tensor) -> None:
    if q.dim() != 3 or 0 in q.shape:
        raise ValueError(
            f"q: {_describe(q)}; expected [num_tokens, num_query_heads, head_size], none of them 0"
        )
    if q.dtype not in QUERY_DTYPES:
        raise ValueError(f"q: {_describe(q)}; expected bfloat16, float16 or float32")
    if q.dtype == torch.bfloat16 and is_interpreting():
        raise ValueError(
            f"q: {_describe(q)}; Triton's interpreter cannot multiply bfloat16: "
            "use float16 or float32 there"
        )
    if q.shape[2] > 256:
        raise ValueError(f"q: {_describe(q)}; head sizes up to 256 are supported")


def _check_keys(k_cache: torch.Tensor, q: torch.Tensor) -> None:
    if k_cache.dim() != 4 or 0 in k_cache.shape:
        raise ValueError(
            f"k_cache: {_describe(k_cache)}; expected [num_blocks, block_size, num_kv_heads, "
            "head_size], none of them 0"
        )
    if k_cache.shape[3] != q.shape[2]:
        raise ValueError(f"k_cache: {_describe(k_cache)}; expected head_size {q.shape[2]}, as in q")
    if q.shape[1] % k_cache.shape[2]:
        raise ValueError(
            f"k_cache: {_describe(k_cache)}; q's {q.shape[1]} heads are no multiple of its "
            f"{k_cache.shape[2]} heads"
        )
    if k_cache.dtype != q.dtype and k_cache.dtype not in _supported_float8(q.device):
        dtypes = (q.dtype, *_supported_float8(q.device))
        names = ", ".join(map(dtype_name, dtypes))
        raise ValueError(
            f"k_cache: {_describe(k_cache)}; expected a dtype that Triton reads on {q.device}: "
            f"{names}"
        )


@cache
def _supported_float8(device: torch.device) -> tuple[torch.dtype, ...]:
    """Return the float8 dtypes that kernels can read on a device."""
    if is_interpreting():
        return torch.float8_e4m3fn, torch.float8_e5m2
    if device.type != "cuda":  # for `reference`, and for compiling without a GPU
        return tuple(FLOAT8)
    with torch.cuda.device(device):
        names = supported_float8()
    return tuple(dtype for dtype, name in FLOAT8.items() if name in names)


def check_per_head(name: str, values: torch.Tensor | None, q: torch.Tensor) -> None:
    """Raise a ValueError if there are values, and not one for each head of some queries."""
    if values is None:
        return
    if (
        values.shape != (q.shape[1],)
        or values.device != q.device
        or values.stride(0) != 1
        or not values.is_floating_point()
    ):
        raise ValueError(
            f"{name}: {_describe(values)}; expected a float per query head, [{q.shape[1]}], "
            f"contiguous, on {q.device}"
        )


def check_out(out: torch.Tensor, q: torch.Tensor) -> None:
    """Raise a ValueError if a tensor cannot take the results of some queries."""
    if out.shape != q.shape or out.dtype != q.dtype or out.device != q.device or out.stride(2) != 1:
        raise ValueError(
            f"out: {_describe(out)}; expected it like q: {_describe(q)}, "
            "its last dimension contiguous"
        )
    if (out.stride(0) == 0 and len(out) > 1) or (out.stride(1) == 0 and out.shape[1] > 1):
        raise ValueError(
            f"out: {_describe(out)}; expected memory of its own for each token and head"
        )
    _check_span("out", out)


def _check_span(name: str, tensor: torch.Tensor) -> None:
    """Raise if offsets inside a block or a token do not fit the 32 bits that the kernels use."""
    if tensor.shape[1] * tensor.stride(1) >= 1 << 31:
        raise ValueError(
            f"{name}: {_describe(tensor)}; its second dimension must span less than 2^31 elements"
        )


def positive_number(name: str, value: float) -> float:
    """Return a number as a float; raise a ValueError if it is not above 0 and finite."""
    if isinstance(value, (int, float)) and math.isfinite(value) and value > 0:
        return float(value)
    raise ValueError(f"{name}: {value!r}; expected a positive number")


def check_lengths(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    seqused_k: torch.Tensor,
    block_table: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
) -> None:
    """Raise a ValueError if the tensors of lengths and the block table do not fit the others."""
    if seqused_k.dim() != 1 or seqused_k.shape[0] == 0:
        raise ValueError(f"seqused_k: {_describe(seqused_k)}; expected [num_seqs], at least one")
    num_seqs = seqused_k.shape[0]
    if cu_seqlens_q.shape != (num_seqs + 1,):
        raise ValueError(
            f"cu_seqlens_q: {_describe(cu_seqlens_q)}; expected [num_seqs + 1], [{num_seqs + 1}]"
        )
    if block_table.dim() != 2 or block_table.shape[0] != num_seqs:
        raise ValueError(
            f"block_table: {_describe(block_table)}; expected [num_seqs, …], [{num_seqs}, …]"
        )
    for name, tensor in (
        ("cu_seqlens_q", cu_seqlens_q),
        ("seqused_k", seqused_k),
        ("block_table", block_table),
    ):
        if tensor.dtype != torch.int32 or tensor.stride(-1) != 1 or tensor.device != q.device:
            raise ValueError(
                f"{name}: {_describe(tensor)}; expected int32 on {q.device}, "
                "its last dimension contiguous"
            )
    for name, value in (("max_seqlen_q", max_seqlen_q), ("max_seqlen_k", max_seqlen_k)):
        if not isinstance(value, int):
            raise ValueError(f"{name}: {value!r}; expected an int")
    if not 1 <= max_seqlen_q <= q.shape[0]:
        raise ValueError(f"max_seqlen_q: {max_seqlen_q}; expected 1 to q's {q.shape[0]} tokens")
    room = block_table.shape[1] * k_cache.shape[1]
    if not max_seqlen_q <= max_seqlen_k <= room:
        raise ValueError(
            f"max_seqlen_k: {max_seqlen_k}; expected max_seqlen_q, {max_seqlen_q}, to what a row "
            f"of block_table holds: {block_table.shape[1]} blocks of {k_cache.shape[1]} tokens"
        )


def window_length(window_size: tuple[int, int]) -> int:
    """Return the number of keys before its own position that a query sees; -1 for all.

    Raises:
        ValueError: it is not a causal window.
    """
    if not (
        isinstance(window_size, (tuple, list))
        and [type(side) for side in window_size] == [int, int]
    ):
        raise ValueError(f"window_size: {window_size!r}; expected two ints, as (-1, -1)")
    left, right = window_size
    if right not in (-1, 0):
        raise ValueError(
            f"window_size: {tuple(window_size)}; attention is causal: "
            "the right side must be 0 or -1"
        )
    if left < -1:
        raise ValueError(
            f"window_size: {tuple(window_size)}; the left side must be -1, for none, or more"
        )
    return left if left < UNBOUNDED else -1


def scale_tensor(
    name: str, scale: torch.Tensor | float | None, q: torch.Tensor
) -> torch.Tensor | None:
    """Return a scale as one float32 on the queries' device; raise a ValueError if it is neither."""
    if scale is None:
        return None
    if not isinstance(scale, torch.Tensor):
        return torch.full((1,), positive_number(name, scale), dtype=torch.float32, device=q.device)
    if scale.numel() != 1 or scale.dtype != torch.float32 or scale.device != q.device:
        raise ValueError(
            f"{name}: {_describe(scale)}; expected a number, or one float32 on {q.device}"
        )
    return scale


@dataclass(frozen=True, slots=True)
class TensorForm:
    """Properties of a layer's tensor that must be as planned.

    `misaligned` is its address modulo 16.
    """

    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    misaligned: int


def form_of(tensor: torch.Tensor) -> TensorForm:
    """Return a tensor's form."""
    return TensorForm(
        tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.data_ptr() & 15
    )


def has_form(tensor: torch.Tensor, form: TensorForm) -> bool:
    """Check a tensor for a form; each layer asks, so nothing is built for the comparison."""
    return (
        tensor.shape == form.shape
        and tensor.stride() == form.strides
        and tensor.dtype is form.dtype
        and tensor.device == form.device
        and tensor.data_ptr() & 15 == form.misaligned
    )


CHECK_VALUES = os.environ.get("DEJAVU_ATTENTION_CHECK", "0") not in ("", "0")
"""Whether values in GPU memory are checked too. Read once, because every launch needs it."""


@dataclass(eq=False)
class Batch:
    """Validated call. Shapes are those of `paged_attention`; sizes are in tokens.

    Do not change it. It is not a frozen dataclass, because every call makes one and freezing takes
    longer than checking some of the tensors.
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
    """Number of keys before its own position that a query sees; -1 for all."""
    softcap: float
    alibi_slopes: torch.Tensor | None
    sinks: torch.Tensor | None
    k_scale: torch.Tensor | None
    v_scale: torch.Tensor | None

    def with_tensors(self, layer: LayerTensors) -> Batch:
        """Return the call with another layer's tensors, which must be of the same form."""
        other = copy(self)
        other.q, other.out = layer.q, layer.out
        other.k_cache, other.v_cache = layer.k_cache, layer.v_cache
        if layer.scales is not None:
            other.k_scale, other.v_scale = layer.scales
        return other

    def with_out(self, out: torch.Tensor) -> Batch:
        """Return the call with another tensor to write to."""
        other = copy(self)
        other.out = out
        return other

    @cached_property
    def num_tokens(self) -> int:
        """Number of new tokens."""
        return self.q.shape[0]

    @cached_property
    def num_seqs(self) -> int:
        """Number of sequences."""
        return self.seqused_k.shape[0]

    @cached_property
    def kv_heads(self) -> int:
        """Number of KV heads."""
        return self.k_cache.shape[2]

    @cached_property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.q.shape[1] // self.k_cache.shape[2]

    @cached_property
    def head_padded(self) -> int:
        """Head size of the kernels' tiles: the next power of two, at least 16."""
        return max(16, 1 << (self.q.shape[2] - 1).bit_length())

    @property
    def scales(self) -> Scales | None:
        """Factors of the cached keys and values; None unless there are both."""
        if self.k_scale is None or self.v_scale is None:
            return None
        return self.k_scale, self.v_scale

    @cached_property
    def casts(self) -> bool:
        """Whether the cache has float8 elements, which are converted to the queries' dtype."""
        return self.k_cache.element_size() < self.q.element_size()

    @cached_property
    def decode_share(self) -> int:
        """Largest percentage of decoding sequences that is possible for the batch's sizes."""
        longer = math.ceil(max(self.num_tokens - self.num_seqs, 0) / max(self.max_seqlen_q - 1, 1))
        return 100 * (self.num_seqs - min(longer, self.num_seqs)) // self.num_seqs

    def q_blocks(self, block_q: int) -> int:
        """Return how many numbers `find_block` assigns to Q blocks of `block_q` tokens, at most."""
        return self.num_tokens // block_q + self.num_seqs

    @property
    def inputs(self) -> tuple[Any, ...]:
        """Arguments for the kernels' parameters from `q` to `decode_share`."""
        q, cache = self.q, self.k_cache
        return (
            q, cache, self.v_cache, self.cu_seqlens_q, self.seqused_k, self.block_table,
            self.alibi_slopes, self.sinks, self.k_scale, self.v_scale,
            self.softmax_scale, self.softcap,
            q.stride(0), q.stride(1), cache.stride(0), cache.stride(1), cache.stride(2),
            self.block_table.stride(0), *self.composition,
        )  # fmt: skip

    @property
    def composition(self) -> tuple[int, int, int, int]:
        """Number of sequences, their mean new tokens, their most tokens, and the decode share."""
        return (
            self.num_seqs,
            max(self.num_tokens // self.num_seqs, 1),
            self.max_seqlen_k,
            self.decode_share,
        )

    @cached_property
    def shape(self) -> dict[str, Any]:
        """Compile-time arguments of the kernels that the call determines."""
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
    """Return Triton's input precision: tf32x3 keeps float32's results within 1e-6 on NVIDIA."""
    return "tf32x3" if q.dtype == torch.float32 and torch.version.hip is None else "ieee"


def make_batch(
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
    """Validate the arguments of `paged_attention` and return them as a `Batch`.

    Raises:
        ValueError: an argument does not fit; the message names it, its value and what is expected.
    """
    check_tensors(q, k_cache, v_cache)
    check_lengths(q, k_cache, cu_seqlens_q, seqused_k, block_table, max_seqlen_q, max_seqlen_k)
    check_per_head("alibi_slopes", alibi_slopes, q)
    check_per_head("sinks", sinks, q)
    if out is None:
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
    else:
        check_out(out, q)
    scale = (
        q.shape[2] ** -0.5
        if softmax_scale is None
        else positive_number("softmax_scale", softmax_scale)
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
        window=window_length(window_size),
        softcap=positive_number("softcap", softcap) if softcap != 0 else 0.0,
        alibi_slopes=alibi_slopes,
        sinks=sinks,
        k_scale=scale_tensor("k_scale", k_scale, q),
        v_scale=scale_tensor("v_scale", v_scale, q),
    )
    if CHECK_VALUES or not q.is_cuda:
        _check_values(batch)
    return batch


def _check_values(batch: Batch) -> None:
    """Check the lengths and block numbers, for which the host waits for the GPU."""
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
                f"seqused_k: {key} at {index}; expected the sequence's {query} new tokens to "
                f"max_seqlen_k, {batch.max_seqlen_k}"
            )
        used = batch.block_table[index, : math.ceil(key / page)]
        outside = used[(used < 0) | (used >= num_blocks)]
        if outside.numel():
            raise ValueError(
                f"block_table: {int(outside[0])} in row {index}; expected blocks of the cache, "
                f"0 to {num_blocks - 1}"
            )
