"""Class `Plan`: what all layers of a step share is checked, chosen and scheduled once."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ..triton_internals.repeated_launch import RepeatedLaunch
from . import dispatch
from .batch import Batch, check_out
from .kernels import hopper
from .schedule import make_schedule

__all__ = ["Plan"]


class TensorForm(NamedTuple):
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
    shape, strides, dtype, device, misaligned = form
    return (
        tensor.shape == shape
        and tensor.stride() == strides
        and tensor.dtype == dtype
        and tensor.device == device
        and tensor.data_ptr() & 15 == misaligned
    )


class Plan:
    """Attention of one batch in every layer of a model; `attention.plan` makes it.

    Args:
        batch: the validated call of one layer.
        overlap: as in `plan`.
    """

    def __init__(self, batch: Batch, overlap: bool = True) -> None:
        """Choose an implementation, and schedule the batch."""
        self._batch, self._overlap = batch, overlap
        self._implementation = dispatch.choose(batch)
        self._q_form, self._keys_form = form_of(batch.q), form_of(batch.k_cache)
        self._values_form = form_of(batch.v_cache)
        self._schedule = make_schedule(batch) if self._implementation == "hopper" else None
        self._descriptors = hopper.descriptors_like(batch.k_cache)
        self._repeat: tuple[TensorForm, RepeatedLaunch] | None = None

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

    def run(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute one layer's attention.

        Args:
            q: the layer's queries, of the shape, strides and dtype that were planned.
            k_cache: the layer's keys, likewise.
            v_cache: the layer's values, likewise.
            out: tensor to write to, with the shape and dtype of q; allocated if None.

        Returns:
            `out`, [num_tokens, num_query_heads, head_size].

        Raises:
            ValueError: a tensor is not as planned.
        """
        if out is None:
            out = torch.empty_like(q, memory_format=torch.contiguous_format)
        if not (
            has_form(q, self._q_form)
            and has_form(k_cache, self._keys_form)
            and has_form(v_cache, self._values_form)
        ):
            self._reject(q, k_cache, v_cache)
        if q.is_cuda and q.device.index != torch.cuda.current_device():
            with torch.cuda.device(q.device):  # Triton launches on the current device
                return self._run(q, k_cache, v_cache, out)
        return self._run(q, k_cache, v_cache, out)

    def _run(
        self, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, out: torch.Tensor
    ) -> torch.Tensor:
        """Compute a layer of the planned form on the current device."""
        if self._repeat is not None and has_form(out, self._repeat[0]):
            keys = hopper.descriptor_of(k_cache, self._descriptors)
            values = hopper.descriptor_of(v_cache, self._descriptors)
            if self._repeat[1](out, keys, values, q):
                return out
        check_out(out, q)
        return self._launch(q, k_cache, v_cache, out)

    def _launch(
        self, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, out: torch.Tensor
    ) -> torch.Tensor:
        batch = self._batch.with_tensors(q, k_cache, v_cache, out)
        if self._schedule is None:
            return dispatch.run(batch, self._implementation)
        if not hopper.holds_words(out):
            # A copy and not an empty tensor: rows past the last sequence must keep their content.
            copy = out.clone(memory_format=torch.contiguous_format)
            return out.copy_(self.run(q, k_cache, v_cache, copy))
        call = hopper.launch(batch, self._schedule, self._overlap)
        kernel = call.kernel[call.grid](*call.args, **call.kwargs)
        self._keep(call, kernel, form_of(out))
        return out

    def _keep(self, call: Any, kernel: Any, form: TensorForm) -> None:
        """Prepare the launches of the layers that follow."""
        config = call.kernel.best_config
        arguments = {**call.arguments, **config.kwargs}
        ordered = {name: arguments[name] for name in call.kernel.arg_names}
        repeated = RepeatedLaunch(kernel, call.grid[0], ordered, ("out", "keys", "values", "q"))
        self._repeat = form, repeated

    def _reject(self, *tensors: torch.Tensor) -> None:
        forms = (self._q_form, self._keys_form, self._values_form)
        for name, tensor, form in zip(("q", "k_cache", "v_cache"), tensors, forms, strict=True):
            if not has_form(tensor, form):
                raise ValueError(f"{name}: {form_of(tensor)}; planned was {form}")
