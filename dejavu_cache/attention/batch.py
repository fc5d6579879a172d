"""What a call of attention is: its validated arguments, and what each layer of a step brings.

Each error names the argument, its value and what is expected.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple, NoReturn

import torch

from ..triton_internals.environment import is_interpreting, supported_float8
from ..triton_internals.identity import dtype_name

FLOAT8 = {
    torch.float8_e4m3fn: "fp8e4nv",
    torch.float8_e4m3fnuz: "fp8e4b8",
    torch.float8_e5m2: "fp8e5",
}
"""Float8 dtypes that a cache may have instead of the queries' dtype, with Triton's names."""

QUERY_DTYPES = (torch.bfloat16, torch.float16, torch.float32)

UNBOUNDED = 1 << 30
"""Windows this large count as none; no sequence is as long, and position + window fits 32 bits."""

Scales = tuple[torch.Tensor, torch.Tensor]
"""Factors of the cached keys and of the cached values, one float32 each."""


class NewTokens(NamedTuple):
    """Keys and values of a batch's new tokens, which are not in the cache yet.

    Attributes:
        keys: [num_tokens, num_kv_heads, head_size], of the queries' dtype. Only the last dimension
            must be contiguous.
        values: likewise.
        slots: where each token belongs, [num_tokens], int64: the number of its block times the
            block's size, plus its place in the block. Tokens with a negative slot are not written.
    """

    keys: torch.Tensor
    values: torch.Tensor
    slots: torch.Tensor


@dataclass(eq=False, slots=True)
class LayerTensors:
    """Tensors of one layer, as in `Plan.run`.

    Every layer makes one, and a NamedTuple takes twice as long to make.

    Attributes:
        q: queries.
        k_cache: keys.
        v_cache: values.
        out: tensor to write to.
        new: new tokens to write into the cache; None if they are there already.
        scales: factors of the cache; None unless there are both.
    """

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    out: torch.Tensor
    new: NewTokens | None
    scales: Scales | None


Repeat = Callable[[LayerTensors], bool]
"""Computes another layer as the first one was computed; returns False if it could not.

It writes the layer's new tokens if the first launch was given some, and ignores them otherwise. The
layer has scales if the first one had. It is to be launched in the first one's `queue`, whose
counters it takes.
"""


@dataclass(frozen=True, slots=True)
class TensorForm:
    """What a planned launch takes for granted of a layer's tensor.

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
        # tf32x3 keeps float32's results within 1e-6 on NVIDIA's GPUs.
        splits = self.q.dtype == torch.float32 and torch.version.hip is None
        return {
            "KV_HEADS": self.kv_heads,
            "GROUP": self.group,
            "HEAD": self.q.shape[2],
            "HEAD_PADDED": self.head_padded,
            "PAGE": self.k_cache.shape[1],
            "WINDOW": self.window,
            "SOFTCAP": self.softcap > 0,
            "PRECISION": "tf32x3" if splits else "ieee",
        }


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
    _check_queries(q)
    _check_caches(k_cache, v_cache, q)
    for name, tensor in (("q", q), ("k_cache", k_cache), ("v_cache", v_cache)):
        _check_memory(name, tensor, q)
    _check_per_head("alibi_slopes", alibi_slopes, q)
    _check_per_head("sinks", sinks, q)
    if out is None:
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
    else:
        check_out(out, q)
    scale = q.shape[2] ** -0.5
    if softmax_scale is not None:
        scale = _positive_number("softmax_scale", softmax_scale)
    batch = Batch(
        q, k_cache, v_cache, out, cu_seqlens_q, seqused_k, block_table, max_seqlen_q, max_seqlen_k,
        scale, _window_length(window_size),
        _positive_number("softcap", softcap) if softcap != 0 else 0.0,
        alibi_slopes, sinks,
        scale_tensor("k_scale", k_scale, q), scale_tensor("v_scale", v_scale, q),
    )  # fmt: skip
    _check_lengths(batch)
    return batch


def _describe(tensor: torch.Tensor) -> str:
    dtype = dtype_name(tensor.dtype)
    return f"{dtype}{list(tensor.shape)} with strides {list(tensor.stride())} on {tensor.device}"


def _refuse(name: str, tensor: torch.Tensor, why: str) -> NoReturn:
    """Raise the error for a tensor that does not fit."""
    raise ValueError(f"{name}: {_describe(tensor)}; {why}")


def _check_queries(q: torch.Tensor) -> None:
    if q.dim() != 3 or 0 in q.shape:
        _refuse("q", q, "expected [num_tokens, num_query_heads, head_size], none of them 0")
    if q.dtype not in QUERY_DTYPES:
        _refuse("q", q, "expected bfloat16, float16 or float32")
    if q.dtype == torch.bfloat16 and is_interpreting():
        why = "Triton's interpreter cannot multiply bfloat16: use float16 or float32 there"
        _refuse("q", q, why)
    if q.shape[2] > 256:
        _refuse("q", q, "head sizes up to 256 are supported")


def _check_caches(k_cache: torch.Tensor, v_cache: torch.Tensor, q: torch.Tensor) -> None:
    if k_cache.dim() != 4 or 0 in k_cache.shape:
        expected = "[num_blocks, block_size, num_kv_heads, head_size], none of them 0"
        _refuse("k_cache", k_cache, f"expected {expected}")
    if k_cache.shape[3] != q.shape[2]:
        _refuse("k_cache", k_cache, f"expected head_size {q.shape[2]}, as in q")
    heads, kv_heads = q.shape[1], k_cache.shape[2]
    if heads % kv_heads:
        _refuse("k_cache", k_cache, f"q's {heads} heads are no multiple of its {kv_heads} heads")
    if k_cache.dtype != q.dtype and k_cache.dtype not in _supported_float8(q.device):
        names = ", ".join(map(dtype_name, (q.dtype, *_supported_float8(q.device))))
        _refuse("k_cache", k_cache, f"expected a dtype that Triton reads on {q.device}: {names}")
    if (
        v_cache.shape != k_cache.shape
        or v_cache.dtype != k_cache.dtype
        or v_cache.stride() != k_cache.stride()
    ):
        _refuse("v_cache", v_cache, f"expected it like k_cache: {_describe(k_cache)}")


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


def _check_memory(name: str, tensor: torch.Tensor, q: torch.Tensor) -> None:
    if tensor.stride(-1) != 1:
        _refuse(name, tensor, "expected the last dimension contiguous")
    if tensor.device != q.device:
        _refuse(name, tensor, f"expected it on {q.device}, as q")
    _check_span(name, tensor)


def _check_span(name: str, tensor: torch.Tensor) -> None:
    """Raise if offsets inside a block or a token do not fit the 32 bits that the kernels use."""
    if tensor.shape[1] * tensor.stride(1) >= 1 << 31:
        _refuse(name, tensor, "its second dimension must span less than 2^31 elements")


def _check_per_head(name: str, values: torch.Tensor | None, q: torch.Tensor) -> None:
    """Raise a ValueError if there are values, and not one for each head of some queries."""
    if values is not None and not (
        values.shape == (q.shape[1],)
        and values.device == q.device
        and values.stride(0) == 1
        and values.is_floating_point()
    ):
        expected = f"a float per query head, [{q.shape[1]}], contiguous, on {q.device}"
        _refuse(name, values, f"expected {expected}")


def check_out(out: torch.Tensor, q: torch.Tensor) -> None:
    """Raise a ValueError if a tensor cannot take the results of some queries."""
    if out.shape != q.shape or out.dtype != q.dtype or out.device != q.device or out.stride(2) != 1:
        like = f"expected it like q: {_describe(q)}, its last dimension contiguous"
        _refuse("out", out, like)
    if (out.stride(0) == 0 and len(out) > 1) or (out.stride(1) == 0 and out.shape[1] > 1):
        _refuse("out", out, "expected memory of its own for each token and head")
    _check_span("out", out)


def check_new(new: NewTokens, q: torch.Tensor, k_cache: torch.Tensor) -> None:
    """Raise a ValueError if new tokens do not fit the queries and keys of their layer."""
    expected = (len(q), *k_cache.shape[2:])
    for name, tensor in (("new.keys", new.keys), ("new.values", new.values)):
        if tensor.shape != expected or tensor.dtype != q.dtype or tensor.device != q.device:
            _refuse(name, tensor, f"expected {dtype_name(q.dtype)}{list(expected)} on {q.device}")
        if tensor.stride(2) != 1:
            _refuse(name, tensor, "expected the last dimension contiguous")
    slots = new.slots
    if (
        slots.shape != expected[:1]
        or slots.dtype != torch.int64
        or slots.stride() != (1,)
        or slots.device != q.device
    ):
        _refuse("new.slots", slots, f"expected int64[{len(q)}], contiguous, on {q.device}")


def _positive_number(name: str, value: float) -> float:
    """Return a number as a float; raise a ValueError if it is not above 0 and finite."""
    if isinstance(value, (int, float)) and math.isfinite(value) and value > 0:
        return float(value)
    raise ValueError(f"{name}: {value!r}; expected a positive number")


def _check_lengths(batch: Batch) -> None:
    """Raise a ValueError if the tensors of lengths and the block table do not fit the others."""
    block_table, device = batch.block_table, batch.q.device
    if batch.seqused_k.dim() != 1 or batch.num_seqs == 0:
        _refuse("seqused_k", batch.seqused_k, "expected [num_seqs], at least one")
    num_seqs = batch.num_seqs
    if batch.cu_seqlens_q.shape != (num_seqs + 1,):
        _refuse("cu_seqlens_q", batch.cu_seqlens_q, f"expected [num_seqs + 1], [{num_seqs + 1}]")
    if block_table.dim() != 2 or block_table.shape[0] != num_seqs:
        _refuse("block_table", block_table, f"expected [num_seqs, …], [{num_seqs}, …]")
    for name in ("cu_seqlens_q", "seqused_k", "block_table"):
        tensor = getattr(batch, name)
        if tensor.dtype != torch.int32 or tensor.stride(-1) != 1 or tensor.device != device:
            _refuse(name, tensor, f"expected int32 on {device}, its last dimension contiguous")
    for name in ("max_seqlen_q", "max_seqlen_k"):
        if not isinstance(value := getattr(batch, name), int):
            raise ValueError(f"{name}: {value!r}; expected an int")
    max_seqlen_q, max_seqlen_k = batch.max_seqlen_q, batch.max_seqlen_k
    num_tokens, (blocks, page) = batch.num_tokens, (block_table.shape[1], batch.k_cache.shape[1])
    if not 1 <= max_seqlen_q <= num_tokens:
        raise ValueError(f"max_seqlen_q: {max_seqlen_q}; expected 1 to q's {num_tokens} tokens")
    if not max_seqlen_q <= max_seqlen_k <= blocks * page:
        raise ValueError(
            f"max_seqlen_k: {max_seqlen_k}; expected max_seqlen_q, {max_seqlen_q}, to what a row "
            f"of block_table holds: {blocks} blocks of {page} tokens"
        )


def _window_length(window_size: tuple[int, int]) -> int:
    """Return the number of keys before its own position that a query sees; -1 for all.

    Raises:
        ValueError: it is not a causal window.
    """
    left, right = window_size
    if not isinstance(left, int) or left < -1 or right not in (-1, 0):
        raise ValueError(
            f"window_size: {window_size}; expected -1 or more on the left and, as attention is "
            "causal, 0 or -1 on the right"
        )
    return left if left < UNBOUNDED else -1


def scale_tensor(
    name: str, scale: torch.Tensor | float | None, q: torch.Tensor
) -> torch.Tensor | None:
    """Return a scale as one float32 on the queries' device; raise a ValueError if it is neither."""
    if scale is None:
        return None
    if not isinstance(scale, torch.Tensor):
        number = _positive_number(name, scale)
        return torch.full((1,), number, dtype=torch.float32, device=q.device)
    if scale.numel() != 1 or scale.dtype != torch.float32 or scale.device != q.device:
        _refuse(name, scale, f"expected a number, or one float32 on {q.device}")
    return scale
