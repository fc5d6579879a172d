"""A kernel's launch, made but not yet done: what an implementation runs, and what a sweep tunes."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch

__all__ = ["KernelCall", "num_sms", "zeros"]

SPARE = 1 << 20
"""Zeros that are made at a time for graphs: enough for hundreds of captured launches."""


class KernelCall(NamedTuple):
    """A kernel, its grid and its arguments."""

    kernel: Any
    grid: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __call__(self) -> None:
        """Launches."""
        self.kernel[self.grid](*self.args, **self.kwargs)

    @property
    def arguments(self) -> dict[str, Any]:
        """All arguments by name."""
        return {**dict(zip(self.kernel.arg_names, self.args, strict=False)), **self.kwargs}


@cache
def num_sms(device: torch.device) -> int:
    """Multiprocessors of a GPU; a few, as programs of the interpreter."""
    return (
        torch.cuda.get_device_properties(device).multi_processor_count
        if device.type == "cuda"
        else 2
    )


def zeros(device: torch.device, count: int) -> torch.Tensor:
    """Zeros, int32, for a kernel that counts with them and leaves them zero.

    Launches of one stream follow each other, so they share them. A captured graph may be replayed on any
    stream beside any other, so each launch in it has its own, from a supply that is made outside of graphs:
    to clear them in the graph would take longer than some kernels. Nobody says when a graph is gone, so a
    supply is never given back.
    """
    if device.type != "cuda":
        return torch.zeros(count, dtype=torch.int32)
    supplies = _supplies.setdefault(device, [])
    short = not supplies or len(supplies[-1]) < count
    if torch.cuda.is_current_stream_capturing():
        if short:
            return torch.zeros(count, dtype=torch.int32, device=device)
        taken, supplies[-1] = supplies[-1][:count], supplies[-1][count:]
        return taken
    if short:
        supplies.append(torch.zeros(SPARE, dtype=torch.int32, device=device))
    return _shared_zeros(device, torch.cuda.current_stream(device).cuda_stream, count)


_supplies: dict[torch.device, list[torch.Tensor]] = {}


@cache
def _shared_zeros(device: torch.device, stream: int, count: int) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.int32, device=device)
