"""What a pruning function can see of an argument, as a part of a key."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["visible_value"]

_PLAIN_TYPES = frozenset({int, bool, str, bytes, type(None)})


def visible_value(value: Any) -> tuple[Any, ...]:
    """Return a hashable tuple that differs wherever a pruning function could tell two values apart.

    A tensor counts by its type, dtype, shape, strides, device and alignment on 16 bytes. Its
    elements do not count: reading them would make the launch wait for the device.

    Raises:
        TypeError: the value is of a type that may hide more than can be compared.
    """
    kind = value.__class__
    if kind in _PLAIN_TYPES or isinstance(value, enum.Enum):
        return kind, value
    if kind is float:
        return kind, repr(value)  # 0.0 and -0.0 are two values, and nan is one
    if kind in (tuple, list):
        return kind, *map(visible_value, value)
    describe = _describers().get(kind)
    if describe is None:
        raise TypeError(f"the values of {kind.__qualname__} cannot be compared")
    return kind, *describe(value)


def _describers() -> dict[type, Callable[[Any], tuple[Any, ...]]]:
    """Return what describes the values of Triton's types, and of PyTorch's once it is imported."""
    if not _DESCRIBERS:
        import triton.language as tl

        _DESCRIBERS[tl.dtype] = _itself
        _DESCRIBERS[tl.constexpr] = lambda constant: visible_value(constant.value)
    torch = sys.modules.get("torch")
    if torch is not None and torch.Tensor not in _DESCRIBERS:
        _DESCRIBERS[torch.dtype] = _DESCRIBERS[torch.device] = _itself
        _DESCRIBERS[torch.Tensor] = _DESCRIBERS[torch.nn.Parameter] = _describe_tensor
    return _DESCRIBERS


def _itself(value: Any) -> tuple[Any, ...]:
    return (value,)


def _describe_tensor(tensor: Any) -> tuple[Any, ...]:
    alignment = tensor.data_ptr() & 15
    return tensor.dtype, tensor.shape, tensor.stride(), tensor.device, alignment


_DESCRIBERS: dict[type, Callable[[Any], tuple[Any, ...]]] = {}
