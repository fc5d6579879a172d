"""Prepared kernel launches, which implementations run and sweeps tune.

With them goes what launches take from their GPU: counters that kernels reset themselves, which
launches of one stream may share, and the number of multiprocessors, by which kernels choose how
many programs they have.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch

from ...system.fork_lock import ForkLock
from ...triton_internals.binder import RepeatedLaunch, current_stream, form_of_launch
from ...triton_internals.environment import is_interpreting, pretended_device
from ...triton_internals.identity import jit_function
from ...triton_internals.versions import only_alignment_counts
from ...tuning.compile_ahead import begins_compilation


class KernelCall(NamedTuple):
    """A kernel with its grid and arguments."""

    kernel: Any
    grid: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __call__(self) -> Any:
        """Launch the kernel, and return it as it was compiled.

        Returns:
            None in Triton's interpreter, and within `compile_together`, which launches nothing.
        """
        if begins_compilation(*self):
            return None
        return self.kernel[self.grid](*self.args, **self.kwargs)

    @property
    def arguments(self) -> dict[str, Any]:
        """All arguments by name."""
        return {**dict(zip(self.kernel.arg_names, self.args, strict=False)), **self.kwargs}

    def launch(self, changing: Sequence[str]) -> RepeatedLaunch | None:
        """Launch the kernel, and return a launch that takes other values of some arguments.

        Only the first launch of a form in this process is bound by Triton, which takes as long as
        several layers. The kernel has no autotuner, or one empty config.

        Args:
            changing: names of these arguments.

        Returns:
            None where calling it does, and nothing can be repeated.
        """
        form = None if is_interpreting() else form_of_launch(self.kernel, self.args, self.kwargs)
        if begins_compilation(*self, form):
            return None
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
        arguments = self.arguments
        ordered = {name: arguments[name] for name in self.kernel.arg_names}
        kept = RepeatedLaunch(kernel, self.grid, ordered, list(given))
        if form is not None and only_alignment_counts(jit_function(self.kernel)):
            _kept[form] = kept
        return kept.with_values(self.grid, given, changing)


_kept: dict[Any, RepeatedLaunch] = {}


SPARE = 1 << 20
"""Zeros allocated at a time for captured graphs: enough for hundreds of launches."""


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


@cache
def num_sms(device: torch.device) -> int:
    """Return the multiprocessors of a GPU, of meta tensors the current one's; 2 without one."""
    if pretended := pretended_device():
        return pretended.units
    if device.type == "cpu" or not torch.cuda.is_available():
        return 2
    return torch.cuda.get_device_properties(device.index).multi_processor_count
