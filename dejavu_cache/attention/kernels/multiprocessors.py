"""Number of a GPU's multiprocessors, by which kernels choose how many programs they have."""

from __future__ import annotations

from functools import cache

import torch

__all__ = ["num_sms"]


@cache
def num_sms(device: torch.device) -> int:
    """Return the number of multiprocessors of a GPU; 2 for Triton's interpreter."""
    if device.type != "cuda":
        return 2
    return torch.cuda.get_device_properties(device).multi_processor_count
