"""Prepared kernel launches, which implementations run and sweeps tune."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol

import torch

from ...system.fork_lock import ForkLock
from ...triton_internals.environment import is_interpreting
from ...triton_internals.launch_form import form_of_launch
from ...triton_internals.repeated_launch import RepeatedLaunch, current_stream
from ...triton_internals.versions import only_alignment_counts
from ..batch import Batch
from ..new_tokens import NewTokens

__all__ = ["KernelCall", "Layers", "Repeat", "num_sms", "queue", "zeros"]

SPARE = 1 << 20
"""Zeros allocated at a time for captured graphs: enough for hundreds of launches."""


class KernelCall(NamedTuple):
    """A kernel with its grid and arguments."""

    kernel: Any
    grid: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __call__(self) -> Any:
        """Launch the kernel, and return it as it was compiled; None in Triton's interpreter."""
        return self.kernel[self.grid](*self.args, **self.kwargs)

    @property
    def arguments(self) -> dict[str, Any]:
        """All arguments by name."""
        return {**dict(zip(self.kernel.arg_names, self.args, strict=False)), **self.kwargs}

    def launch(self, changing: Sequence[str]) -> RepeatedLaunch | None:
        """Launch the kernel, and return a launch that takes other values of some arguments.

        Only the first launch of a form in this process is bound by Triton, which takes as long as
        several layers. The kernel must have one config, or no autotuner.

        Args:
            changing: names of these arguments.

        Returns:
            None in Triton's interpreter, which compiles nothing to repeat.
        """
        form = None if is_interpreting() else form_of_launch(self.kernel, self.args, self.kwargs)
        given = dict(zip(self.kernel.arg_names, self.args, strict=False))
        kept = _kept.get(form)
        if kept is not None:
            launch = kept.with_values(self.grid, given, changing)
            if not launch(*(launch.expand(name, given[name]) for name in changing)):
                self()
            return launch
        kernel = self()
        if kernel is None:
            return None
        config = getattr(self.kernel, "best_config", None)
        function = self.kernel if config is None else self.kernel.fn
        arguments = {**self.arguments, **({} if config is None else config.kwargs)}
        ordered = {name: arguments[name] for name in self.kernel.arg_names}
        kept = RepeatedLaunch(kernel, self.grid, ordered, list(given))
        if form is not None and only_alignment_counts(function):
            if len(_kept) >= MOST_KEPT:
                _kept.clear()
            _kept[form] = kept
        return kept.with_values(self.grid, given, changing)


MOST_KEPT = 4096
"""Limit of the forms whose compiled kernels are kept."""

_kept: dict[Any, RepeatedLaunch] = {}


Repeat = Callable[..., bool]
"""Computes another layer from its tensors; False if it could not.

The tensors are q, k_cache, v_cache and out, those of `NewTokens` if the first layer had these, and
the factors of keys and values if it had both. The layer is to be launched in the first one's
`queue`, whose counters it takes.
"""


class Layers(Protocol):
    """Launches of an implementation in the layers of a step, which share memory and schedule."""

    def writes(self, batch: Batch, new: NewTokens) -> bool:
        """Return whether these launches write a layer's new tokens beside computing attention."""

    def launch(self, batch: Batch, new: NewTokens | None = None) -> Repeat | None:
        """Compute a layer, and return how to compute others of the same form, if that is known.

        Args:
            batch: the call of the layer.
            new: its new tokens, if these launches are to write them.
        """


@cache
def num_sms(device: torch.device) -> int:
    """Return the number of multiprocessors of a GPU; 2 for Triton's interpreter."""
    if device.type != "cuda":
        return 2
    return torch.cuda.get_device_properties(device).multi_processor_count


def queue() -> tuple[int, bool]:
    """Return the stream on which launches are put now, and whether a graph captures them.

    Launches of one queue run one after the other, so they may share counters.
    """
    return current_stream(), torch.cuda.is_current_stream_capturing()


def zeros(device: torch.device, count: int) -> torch.Tensor:
    """Return `count` int32 zeros as counters for a kernel that resets them to zero itself.

    Launches on one stream share their counters. A captured graph may run on any stream, so each
    plan in it gets counters of its own, from a supply that is allocated outside of the capture:
    clearing them inside the graph would take longer than some kernels. The end of a graph's life is
    not reported, so a supply is never reused.
    """
    if device.type != "cuda":
        return torch.zeros(count, dtype=torch.int32)
    with _supplies_lock:
        supplies = _supplies.setdefault(device, [])
        exhausted = not supplies or len(supplies[-1]) < count
        if torch.cuda.is_current_stream_capturing():
            if exhausted:
                return torch.zeros(count, dtype=torch.int32, device=device)
            counters, supplies[-1] = supplies[-1][:count], supplies[-1][count:]
            return counters
        if exhausted:
            supplies.append(torch.zeros(max(SPARE, count), dtype=torch.int32, device=device))
    return _shared_zeros(device, torch.cuda.current_stream(device).cuda_stream, count)


_supplies: dict[torch.device, list[torch.Tensor]] = {}
_supplies_lock = ForkLock()


@cache
def _shared_zeros(device: torch.device, stream: int, count: int) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.int32, device=device)
