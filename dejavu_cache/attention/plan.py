"""Class `Plan`: what all layers of a step share is checked, chosen and scheduled once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from . import dispatch
from .batch import Batch, TensorForm, check_out, form_of, has_form, scale_tensor
from .kernels.kernel_call import queue
from .layer_tensors import LayerTensors, Scales
from .layers import Repeat
from .new_tokens import NewTokens, check_new

__all__ = ["Plan"]


class _FirstLayer(NamedTuple):
    """A layer that was launched, and how to launch others like it.

    Attributes:
        forms: of its output, new tokens and scales.
        queue: in which it was launched.
        repeat: computes another layer.
    """

    forms: tuple[TensorForm, ...]
    queue: tuple[int, bool]
    repeat: Repeat


class Plan:
    """Attention of one batch in every layer of a model; `attention.plan` makes it.

    Args:
        batch: the validated call of one layer.
        overlap: as in `plan`.
    """

    def __init__(self, batch: Batch, overlap: bool = True) -> None:
        """Choose an implementation, and prepare what its layers share."""
        self._batch, self._overlap = batch, overlap
        self._scales = batch.scales
        self._implementation = dispatch.choose(batch)
        self._q_form, self._keys_form = form_of(batch.q), form_of(batch.k_cache)
        self._values_form = form_of(batch.v_cache)
        self._layers = dispatch.layers_of(self._implementation, batch, overlap)
        self._first: _FirstLayer | None = None

    @property
    def implementation(self) -> str:
        """Name of the kernel that was chosen, a key of `IMPLEMENTATIONS`."""
        return self._implementation

    @property
    def batch(self) -> Batch:
        """Validated call that was planned."""
        return self._batch

    @property
    def overlap(self) -> bool:
        """Whether launches may begin while the kernel before them ends, where that is possible."""
        return self._overlap

    def writes(self, new: NewTokens) -> bool:
        """Return whether `run` can write new keys and values into the cache, before it is read."""
        return self._layers.writes(self._batch, new)

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
        scales = self._scales if scales is None else self._pair(scales)
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
        repeat_first = self._layers.launch(self._batch.with_tensors(layer), layer.new)
        if repeat_first is not None:
            self._first = _FirstLayer(tuple(map(form_of, others)), queue(), repeat_first)

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
        if self._scales is None:
            raise ValueError("scales: the plan was made without k_scale or v_scale; give it both")
        if len(scales) != 2 or not all(isinstance(scale, torch.Tensor) for scale in scales):
            raise ValueError(f"scales: {scales}; expected two tensors, for keys and for values")
        return scales[0], scales[1]

    def _reject(self, *tensors: torch.Tensor) -> None:
        forms = (self._q_form, self._keys_form, self._values_form)
        for name, tensor, form in zip(("q", "k_cache", "v_cache"), tensors, forms, strict=True):
            if not has_form(tensor, form):
                raise ValueError(f"{name}: {form_of(tensor)}; planned was {form}")
