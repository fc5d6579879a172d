"""Counters that kernels reset themselves, and the queue in which launches may share them."""

from __future__ import annotations

from functools import cache

import torch

from ...system.fork_lock import ForkLock
from ...triton_internals.repeated_launch import current_stream

__all__ = ["queue", "zeros"]

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
