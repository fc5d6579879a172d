"""Public functions: causal attention over a paged cache of keys and values.

`auto` chooses an implementation by thresholds that were measured on an H200. Among the kernels with
shipped records (`qblock`, `segmented`, `static_grid`), this choice costs 0.3% more than the best
one (geometric mean over the sweep's batches), and 5% more at worst.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ..triton_internals.environment import is_interpreting
from ..tuning.compile_ahead import is_compiling_only
from .batch import (
    Batch,
    LayerTensors,
    NewTokens,
    Repeat,
    Scales,
    TensorForm,
    check_new,
    check_out,
    form_of,
    has_form,
    make_batch,
    scale_tensor,
)
from .kernels import few_sequences, hopper, naive, qblock, segmented, static_grid, write_cache
from .kernels.few_sequences import FewSequencesLayers
from .kernels.hopper import HopperLayers
from .kernels.kernel_call import KernelCall, num_sms, queue


def choose(batch: Batch) -> str:
    """Return the name of the implementation that suits a batch."""
    if hopper.suits(batch):
        # The config of few_sequences was measured on a Hopper GPU; elsewhere, segments are tuned.
        return "few_sequences" if few_sequences.suits(batch) else "hopper"
    rows = batch.max_seqlen_q * batch.group
    programs = max(batch.num_tokens * batch.group // 64, batch.num_seqs) * batch.kv_heads
    sms = num_sms(batch.q.device)
    if rows <= 16:  # decoding a few tokens per sequence: the bandwidth of reading keys decides
        full = programs >= 2 * sms - 8 and batch.max_seqlen_k <= 2 * programs
        return "qblock" if full else "segmented"
    if programs < sms // 2 and batch.max_seqlen_k >= 2048:
        return "segmented"  # too few Q blocks for the GPU, with many keys each
    return "qblock"


def run(batch: Batch) -> torch.Tensor:
    """Compute a batch's attention by the implementation that suits it, and return its `out`."""
    return IMPLEMENTATIONS[choose(batch)](batch)


def _launch(batch: Batch, call: KernelCall) -> torch.Tensor:
    call()
    return batch.out


def run_reference(batch: Batch) -> torch.Tensor:
    """Compute attention in float32 PyTorch, sequence by sequence, which defines the correct result.

    It waits for the GPU, because it reads the lengths.
    """
    begins = batch.cu_seqlens_q.tolist()
    for index, keys in enumerate(batch.seqused_k.tolist()):
        if begins[index + 1] > begins[index]:
            rows = slice(begins[index], begins[index + 1])
            result = _attend(batch, index, batch.q[rows].float(), keys)
            batch.out[rows] = result.to(batch.out.dtype)
    return batch.out


def _attend(batch: Batch, index: int, q: torch.Tensor, num_keys: int) -> torch.Tensor:
    """Compute one sequence's attention.

    Args:
        batch: the call.
        index: the sequence's number in the batch.
        q: float32 queries of its last tokens, [tokens, num_query_heads, head_size].
        num_keys: the number of its tokens.
    """
    blocks = batch.block_table[index, : math.ceil(num_keys / batch.k_cache.shape[1])].long()
    keys, values = (
        cache[blocks].flatten(0, 1)[:num_keys].float().repeat_interleave(batch.group, 1)
        for cache in (batch.k_cache, batch.v_cache)
    )
    scale = batch.softmax_scale if batch.k_scale is None else batch.softmax_scale * batch.k_scale
    scores = torch.einsum("qhd,khd->hqk", q, keys) * scale
    if batch.softcap > 0:
        scores = batch.softcap * torch.tanh(scores / batch.softcap)
    positions = torch.arange(num_keys, device=q.device)
    distance = positions[num_keys - len(q) :, None] - positions[None, :]
    if batch.alibi_slopes is not None:
        scores = scores - batch.alibi_slopes.float()[:, None, None] * distance
    hidden = distance < 0
    if batch.window >= 0:
        hidden |= distance > batch.window
    scores = scores.masked_fill(hidden, float("-inf"))
    if batch.sinks is not None:
        sinks = batch.sinks.float()[:, None, None].expand(-1, len(q), 1)
        weights = torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1)
    out = torch.einsum("hqk,khd->qhd", weights, values)
    return out if batch.v_scale is None else out * batch.v_scale


IMPLEMENTATIONS: dict[str, Callable[[Batch], torch.Tensor]] = {
    "auto": run,
    "reference": run_reference,
    "naive": lambda batch: _launch(batch, naive.launch(batch)),
    "few_sequences": few_sequences.run,
    "hopper": hopper.run,
    "qblock": lambda batch: _launch(batch, qblock.launch(batch)),
    "segmented": segmented.run,
    "static_grid": lambda batch: _launch(batch, static_grid.launch(batch)),
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
        ValueError: an argument does not fit. Values in GPU memory (lengths, block numbers) are not
            checked.
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
    Nothing waits for the device. Inside a captured graph the schedule is made anew at each replay,
    from the lengths that lie in cu_seqlens_q and seqused_k then; max_seqlen_q must still hold.
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
        softmax_scale, window_size, softcap, alibi_slopes, sinks, k_scale, v_scale, q,
    )  # fmt: skip
    # Layers bring an `out` of their own.
    with _on_device(q):
        return Plan(batch, overlap)


def _check_device(q: torch.Tensor, implementation: str) -> None:
    is_computed = q.is_cuda or implementation == "reference" or is_interpreting()
    if not (is_computed or is_compiling_only()):
        raise ValueError(
            f"q: on {q.device}; expected it on a GPU, or TRITON_INTERPRET=1 in the environment"
        )


def _on_device(q: torch.Tensor) -> AbstractContextManager[Any]:
    """Return a context in which Triton launches on the queries' device."""
    if not q.is_cuda or q.device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(q.device)


class Plan:
    """Attention of one batch in every layer of a model; `attention.plan` makes it.

    Attributes:
        batch: the validated call of one layer.
        overlap: whether launches may begin while the kernel before them ends, where that is
            possible.
        implementation: name of the kernel that was chosen, a key of `IMPLEMENTATIONS`.
    """

    def __init__(self, batch: Batch, overlap: bool = True) -> None:
        """Choose an implementation, and prepare what its layers share."""
        self.batch, self.overlap, self.implementation = batch, overlap, choose(batch)
        self._q_form, self._keys_form = form_of(batch.q), form_of(batch.k_cache)
        self._values_form = form_of(batch.v_cache)
        # Of other implementations, launches share nothing and write no new tokens.
        self._layers: HopperLayers | FewSequencesLayers | None = None
        if self.implementation == "hopper":
            self._layers = HopperLayers(batch, overlap)
        elif self.implementation == "few_sequences":
            self._layers = FewSequencesLayers()
        # What a launched layer's output, new tokens and scales were like, its queue, and how to
        # launch another one like it.
        self._first: tuple[tuple[TensorForm, ...], tuple[int, bool], Repeat] | None = None

    def writes(self, new: NewTokens) -> bool:
        """Return whether `run` can write new keys and values into the cache, before it is read."""
        return write_cache.suits(self.batch, new)

    def run(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        out: torch.Tensor | None = None,
        new: NewTokens | None = None,
        scales: Sequence[torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Compute one layer's attention.

        Args:
            q: the layer's queries, of the shape, strides and dtype that were planned.
            k_cache: the layer's keys, likewise.
            v_cache: the layer's values, likewise.
            out: tensor to write to, with the shape and dtype of q; allocated if None.
            new: keys and values of the new tokens, to be written into the cache; None if they are
                there already. Only a plan that `writes` them takes them.
            scales: the layer's own factors of the cached keys and values, one float32 each; those
                that were planned if None.

        Returns:
            `out`, [num_tokens, num_query_heads, head_size].

        Raises:
            ValueError: a tensor is not as planned, the plan does not write such new tokens,
                `scales` are not two float32 tensors of one element, or the plan was made without
                `k_scale` or `v_scale`.
        """
        if out is None:
            out = torch.empty_like(q, memory_format=torch.contiguous_format)
        if not (
            has_form(q, self._q_form)
            and has_form(k_cache, self._keys_form)
            and has_form(v_cache, self._values_form)
        ):
            self._reject(q, k_cache, v_cache)
        scales = self.batch.scales if scales is None else self._pair(scales)
        layer = LayerTensors(q, k_cache, v_cache, out, new, scales)
        if q.is_cuda and q.device.index != torch.cuda.current_device():
            with torch.cuda.device(q.device):  # Triton launches on the current device
                self._run(layer)
        else:
            self._run(layer)
        return out

    def _run(self, layer: LayerTensors) -> None:
        """Compute a layer on the current device; its queries and caches are as planned."""
        others = (layer.out, *(layer.new or ()), *(layer.scales or ()))
        if self._first is not None:
            forms, first_queue, repeat = self._first
            if len(others) == len(forms) and all(map(has_form, others, forms)):
                if queue() == first_queue and repeat(layer):
                    return
        self._check(layer)
        repeat_first = self._launch(self.batch.with_tensors(layer), layer.new)
        if repeat_first is not None:
            self._first = tuple(map(form_of, others)), queue(), repeat_first

    def _launch(self, batch: Batch, new: NewTokens | None) -> Repeat | None:
        """Compute a layer, and return how to compute others of the same form, if that is known.

        New tokens are written before, unless the layers' launches do that themselves.
        """
        layers = self._layers
        if new is None or (layers is not None and layers.writes(batch, new)):
            return self._attend(batch, new)
        write = write_cache.write(batch, new)
        attend = self._attend(batch, None)
        if write is None or attend is None:
            return None

        def repeat(layer: LayerTensors) -> bool:
            return write(layer.k_cache, layer.v_cache, *(layer.new or ())) and attend(layer)

        return repeat

    def _attend(self, batch: Batch, new: NewTokens | None) -> Repeat | None:
        if self._layers is not None:
            return self._layers.launch(batch, new)
        IMPLEMENTATIONS[self.implementation](batch)
        return None

    def _check(self, layer: LayerTensors) -> None:
        """Check what a layer brings beside queries and caches."""
        q, k_cache, new = layer.q, layer.k_cache, layer.new
        check_out(layer.out, q)
        if new is not None:
            check_new(new, q, k_cache)
            if not self.writes(new):
                raise ValueError(
                    f"new: keys and values of {q.dtype} are not written into a cache of "
                    f"{k_cache.dtype}; write them before"
                )
        for name, scale in zip(("k_scale", "v_scale"), layer.scales or (), strict=False):
            scale_tensor(name, scale, q)

    def _pair(self, scales: Sequence[torch.Tensor]) -> Scales:
        """Return a layer's own scales; whether each is one float32 is checked before a launch."""
        if self.batch.scales is None:
            raise ValueError("scales: the plan was made without k_scale or v_scale; give it both")
        if len(scales) != 2 or not all(isinstance(scale, torch.Tensor) for scale in scales):
            raise ValueError(f"scales: {scales}; expected two tensors, for keys and for values")
        return scales[0], scales[1]

    def _reject(self, *tensors: torch.Tensor) -> None:
        forms = (self._q_form, self._keys_form, self._values_form)
        for name, tensor, form in zip(("q", "k_cache", "v_cache"), tensors, forms, strict=True):
            if not has_form(tensor, form):
                raise ValueError(f"{name}: {form_of(tensor)}; planned was {form}")
