"""Checks of the arguments of `paged_attention`.

Each error names the argument, its value and what is expected.
"""

from __future__ import annotations

import math
from functools import cache

import torch

from ..triton_internals.environment import is_interpreting, supported_float8
from ..triton_internals.triton_objects import dtype_name

__all__ = [
    "FLOAT8",
    "check_lengths",
    "check_out",
    "check_per_head",
    "check_tensors",
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
