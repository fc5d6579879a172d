"""Form of a launch: what Triton chooses the compiled kernel by."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from triton import knobs
from triton.runtime import driver

from .versions import watched_values

__all__ = ["form_of_argument", "form_of_launch"]


def form_of_launch(
    kernel: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Hashable, ...] | None:
    """Return what the compiled kernel of a launch on the current device depends on.

    Args:
        kernel: the function that is launched.
        args: its arguments that are not constants.
        kwargs: its constants and options.

    Returns:
        None if an argument has a type that is not known here.
    """
    forms = tuple(map(form_of_argument, args))
    if None in forms:
        return None
    device = driver.active.get_current_device()
    return kernel, device, watched_values(knobs), forms, tuple(kwargs.items())


def form_of_argument(value: Any) -> Hashable | None:
    """Return what Triton compiles a kernel for of an argument; None for a type unknown here.

    Pointers count by their alignment, and integers by their size and whether they are 1 or
    multiples of 16.
    """
    if isinstance(value, torch.Tensor):
        return value.dtype, value.data_ptr() % 16 == 0
    if type(value) is int:
        size = 0 if -(1 << 31) <= value < 1 << 31 else value
        return int, value == 1, value % 16 == 0, size
    if value is None or type(value) is float:
        return (type(value),)
    if type(value).__name__ == "TensorDescriptor" and hasattr(value, "layout"):
        return value.base.dtype, tuple(value.block_shape), len(value.shape), value.layout
    return None
