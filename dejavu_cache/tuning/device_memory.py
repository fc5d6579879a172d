"""Let a call have the device memory that PyTorch keeps for its own later use."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from .config_failures import is_out_of_memory

__all__ = ["call_with_memory"]

Result = TypeVar("Result")


def call_with_memory(
    call: Callable[[], Result], release: Callable[[], object] = lambda: None
) -> Result:
    """Return what a call returns; if the device has no memory left, free some and call again.

    PyTorch keeps the memory of tensors that are gone. The driver, which loads binaries, cannot have
    it, and neither can a graph while it is captured.

    Args:
        call: the call.
        release: gives up memory of the caller's own that the second call can do without.

    Raises:
        Exception: what the second call raises, or the first one for another reason.
    """
    try:
        return call()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    import torch

    release()
    torch.cuda.empty_cache()
    return call()
