"""The tensors among a launch's arguments, and how they lie in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

__all__ = [
    "free_memory",
    "is_comparable",
    "may_overlap",
    "named_tensors",
    "open_for_writes",
    "size_in_bytes",
]


def named_tensors(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield an argument's tensors by name, those behind tensor descriptors included."""
    import torch

    if isinstance(value, (tuple, list)):
        for index, part in enumerate(value):
            yield from named_tensors(f"{name}[{index}]", part)
    else:
        tensor = getattr(value, "base", value)
        if isinstance(tensor, torch.Tensor):
            yield name, tensor


def is_comparable(value: Any) -> bool:
    """Return whether a tensor has elements of which none share memory."""
    import torch

    return (
        value.layout is torch.strided
        and value.numel() > 0
        and all(
            stride > 0 or size == 1
            for stride, size in zip(value.stride(), value.shape, strict=True)
        )
    )


def may_overlap(left: Any, right: Any) -> bool:
    """Return whether two tensors' elements lie in ranges of addresses that overlap."""
    import torch

    spans = []
    for tensor in (left, right):
        if tensor.layout is not torch.strided or not tensor.numel():
            return False
        strides = zip(tensor.stride(), tensor.shape, strict=True)
        length = 1 + sum(stride * (size - 1) for stride, size in strides)
        start = tensor.data_ptr()
        spans.append((start, start + length * tensor.element_size()))
    return bool(
        left.device == right.device and spans[0][0] < spans[1][1] and spans[1][0] < spans[0][1]
    )


def size_in_bytes(tensor: Any) -> int:
    """Return the memory of a tensor's elements."""
    return int(tensor.numel() * tensor.element_size())


def free_memory(tensors: Mapping[str, Any]) -> float:
    """Return the free memory of the tensors' device with the least, infinite for CPUs."""
    import torch

    devices = {tensor.device for tensor in tensors.values() if tensor.device.type == "cuda"}
    return min(
        (float(torch.cuda.mem_get_info(device)[0]) for device in devices), default=float("inf")
    )


@contextmanager
def open_for_writes(tensor: Any) -> Iterator[Any]:
    """Open a tensor for writes that autograd does not see, as a kernel's own writes are."""
    import torch

    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        yield tensor.data
