"""The tensors among a launch's arguments, how they lie in memory, and their content in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "PIECE",
    "bits",
    "free_memory",
    "holds_elements",
    "named_tensors",
    "open_for_writes",
    "pieces",
    "pieces_on_device",
    "refuse_uncopyable",
    "span_of",
]

PIECE = 2**20
"""Number of elements that are looked at together, so that large tensors need no more memory."""


def named_tensors(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield an argument's tensors by name, those behind tensor descriptors included."""
    import torch

    if isinstance(value, (tuple, list)):
        for index, part in enumerate(value):
            yield from named_tensors(f"{name}[{index}]", part)
        return
    tensor = value if isinstance(value, torch.Tensor) else getattr(value, "base", value)
    if isinstance(tensor, torch.Tensor):
        yield name, tensor


def holds_elements(tensor: Any) -> bool:
    """Return whether a tensor has elements of which none share memory.

    Raises:
        Exception: what a tensor raises that does not say.
    """
    import torch

    return (
        tensor.layout is torch.strided
        and tensor.numel() > 0
        and all(
            stride > 0 or size == 1
            for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
        )
    )


def refuse_uncopyable(tensor: Any) -> None:
    """Check by one element that a tensor's content can be copied and compared.

    Raises:
        Exception: it cannot, as that of classes that refuse torch's functions, and lazy views.
    """
    import torch

    element = tensor.detach()[(slice(0, 1),) * tensor.dim()]
    bool((bits(element) == bits(element.clone())).all())
    if element.is_floating_point():
        element.to(torch.float32)


def span_of(tensor: Any) -> tuple[int, int]:
    """Return the addresses of a tensor's first element and of what follows its last one."""
    strides = zip(tensor.stride(), tensor.shape, strict=True)
    length = 1 + sum(stride * (size - 1) for stride, size in strides)
    start = tensor.data_ptr()
    return start, start + length * tensor.element_size()


def free_memory(device: Any) -> float:
    """Return the memory of a device, or of the host, that is free for tensors, in bytes."""
    import torch

    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float(torch.cuda.mem_get_info(device)[0] + unused)
    with suppress(OSError, LookupError, ValueError):  # not Linux
        lines = Path("/proc/meminfo").read_text().splitlines()
        (available,) = (line for line in lines if line.startswith("MemAvailable"))
        return float(available.split()[1]) * 1024
    return float("inf")


@contextmanager
def open_for_writes(tensor: Any) -> Iterator[Any]:
    """Open a tensor for writes that autograd does not see, as a kernel's own writes are."""
    import torch

    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        yield tensor.data


def pieces(*tensors: Any) -> Iterator[tuple[Any, ...]]:
    """Yield views of the same parts of tensors of one shape."""
    first = tensors[0]
    if not first.dim():
        yield tuple(tensor.detach() for tensor in tensors)
        return
    longest = max(range(first.dim()), key=first.size)
    length = max(1, PIECE * first.size(longest) // first.numel())
    parts = (tensor.detach().split(length, longest) for tensor in tensors)
    yield from zip(*parts, strict=True)


def pieces_on_device(tensor: Tensor, *copies: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield the same parts of a tensor and of copies, all on the tensor's device."""
    for part, *others in pieces(tensor, *copies):
        yield (part, *(other.to(part.device) for other in others))


def bits(tensor: Tensor) -> Tensor:
    """Return a view of a tensor's bits as integers, unseen by autograd."""
    import torch

    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.detach().view(integers[tensor.element_size()])
