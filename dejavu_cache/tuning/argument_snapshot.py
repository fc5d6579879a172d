"""Copies of tensors that launches write, on the device, or on the host where that is full.

The tensors among a launch's arguments, how they lie in memory, and their content in pieces.

What outputs hold before a launch, so that elements which the launch does not write show.

It is a NaN in floating-point outputs, and in others the original content with some bits flipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from ..model.record import NO_MEMORY, NOT_COPYABLE
from ..system.background_threads import is_from_signal_handler
from ..triton_internals.identity import dtype_name
from .compile_ahead import is_out_of_memory

__all__ = [
    "LACKS_MEMORY",
    "PIECE",
    "ArgumentSnapshot",
    "Filler",
    "bits",
    "copy_of",
    "find_filler",
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


MEMORY_SHARE = 0.5
"""Share of a device's or the host's free memory that copies may take."""

MOST_ON_HOST = 1 << 32
"""Largest copy on the host in bytes: each launch that is compared moves it back and forth."""

LACKS_MEMORY = f"{NO_MEMORY}: neither the device nor the host has any left for a copy"


class ArgumentSnapshot:
    """The content of a launch's tensors at one moment.

    Args:
        arguments: the launch's arguments by name.
        ignore: arguments to leave alone.

    Attributes:
        tensors: the tensors that can be copied; parts of tuples have names such as `outs[0]`.
        originals: the copies that were taken of them.
        starts: what some hold before a launch in their place.
        uncopied: why the others have no copy, by name.
        spans: the addresses of each tensor's elements, from the first to behind the last.
    """

    def __init__(self, arguments: Mapping[str, Any], ignore: Collection[str]) -> None:
        """Find the tensors among arguments; copy nothing yet."""
        self.tensors: dict[str, Tensor] = {}
        self.originals: dict[str, Tensor] = {}
        self.starts: dict[str, Tensor] = {}
        self.uncopied: dict[str, str] = {}
        self.spans: dict[str, tuple[int, int]] = {}
        for argument, value in arguments.items():
            for name, tensor in named_tensors(argument, value):
                with suppress(Exception):  # some refuse to say where they are
                    self.spans[name] = span_of(tensor)
                if argument not in ignore:
                    self._add(name, tensor)

    def _add(self, name: str, tensor: Any) -> None:
        try:
            if holds_elements(tensor):
                refuse_uncopyable(tensor)
                self.tensors[name] = tensor
        except Exception as error:
            if is_from_signal_handler(error):
                raise
            reason = (str(error).splitlines() or [""])[0][:300]
            self.uncopied[name] = f"{NOT_COPYABLE}: {type(error).__name__}: {reason}"

    def copy(self, name: str, *, may_use_host: bool) -> bool:
        """Keep a tensor's present content; return whether there is memory for it."""
        if name not in self.originals:
            copied = copy_of(self.tensors[name], may_use_host=may_use_host)
            if copied is None:
                self.uncopied[name] = LACKS_MEMORY
                return False
            self.originals[name] = copied
        return True

    def forget(self, name: str) -> None:
        """Free a tensor's copy."""
        self.originals.pop(name, None)
        self.starts.pop(name, None)

    def release(self) -> None:
        """Free all copies and let go of the tensors."""
        for contents in (self.tensors, self.originals, self.starts):
            contents.clear()

    def restore(self) -> None:
        """Give the tensors that were copied their original content again, unseen by autograd."""
        for name, original in self.originals.items():
            self._write(name, original)

    def begin(self) -> None:
        """Give the tensors that were copied what they hold before a launch."""
        for name in self.originals:
            self._write(name, self.before(name))

    def before(self, name: str) -> Tensor:
        """Return what a tensor holds before a launch."""
        return self.starts.get(name, self.originals[name])

    def start_elsewhere(self, name: str) -> None:
        """Have a tensor hold small numbers of both signs before a launch, if memory reaches."""
        import torch

        start = copy_of(self.tensors[name])
        if start is not None:
            for (part,) in pieces(start):
                numbers = torch.arange(part.numel(), device=part.device) % 8
                part.copy_(((numbers - 3.5) / 4).reshape(part.shape))
            self.starts[name] = start

    def _write(self, name: str, content: Tensor) -> None:
        with open_for_writes(self.tensors[name]) as tensor:
            for part, source in pieces(tensor, content):
                part.copy_(source)

    def has_changed(self, name: str) -> bool:
        """Return whether a tensor's bits differ from those before the launch."""
        return any(
            not bool((bits(part) == bits(before)).all())
            for part, before in pieces_on_device(self.tensors[name], self.before(name))
        )

    def shares_memory(self, name: str) -> bool:
        """Return whether a tensor may share memory with another argument, copied or not."""
        start, end = self.spans[name]
        return any(
            start < other_end and other_start < end
            for other, (other_start, other_end) in self.spans.items()
            if other != name
        )


def copy_of(tensor: Tensor, *, may_use_host: bool = True) -> Tensor | None:
    """Return a copy of a tensor, on the host where its device is full; None if that is, too."""
    import torch

    size = tensor.numel() * tensor.element_size()
    on_host = [torch.device("cpu")] if may_use_host and size <= MOST_ON_HOST else []
    for device in dict.fromkeys([tensor.device, *on_host]):
        if 2 * size > free_memory(device) * MEMORY_SHARE:
            continue
        try:
            copied = torch.empty_like(tensor.detach(), device=device, requires_grad=False)
            for part, source in pieces(copied, tensor):
                part.copy_(source)
        except Exception as error:
            if not (is_out_of_memory(error) or "allocate memory" in str(error)):
                raise
        else:
            return copied
    return None


_NANS = {
    "float64": 0x7FFA5A5A5A5A5A5A,
    "float32": 0x7FDA5A5A,
    "float16": 0x7EDA,
    "bfloat16": 0x7FDA,
    "float8_e4m3fn": -1,
    "float8_e5m2": -2,
    "float8_e4m3fnuz": -128,
    "float8_e5m2fnuz": -128,
}
"""A NaN by dtype, as an integer: where the type allows it, one that no computation yields."""

_FLIPS = (0x5A, 0x33, 0x6C)
"""Bits to flip in an integer or boolean, of which one leads to no element's result."""


class Filler:
    """Content of one output that no launch computes.

    Args:
        nan: the bits of a NaN, or None.
        flip: the bits to flip in the original content, where there is no NaN.

    Attributes:
        is_nan: whether there is a NaN.
    """

    def __init__(self, nan: int | None, flip: int) -> None:
        """Keep what is described at the class."""
        self.is_nan = nan is not None
        self._nan = nan
        self._flip = flip

    def __str__(self) -> str:
        """Return a text for people."""
        return "NaN" if self.is_nan else "something else"

    def write(self, tensor: Tensor, original: Tensor) -> None:
        """Fill a tensor."""
        with open_for_writes(tensor) as opened:
            for part, before in pieces(opened, original):
                if self._nan is None:
                    bits(part).copy_(bits(before) ^ self._flip)
                else:
                    bits(part).fill_(self._nan)

    def holds(self, part: Tensor, original: Tensor) -> Tensor:
        """Return which elements of a part have not been written since."""
        return bits(part) == (bits(original) ^ self._flip if self._nan is None else self._nan)


def find_filler(tensor: Tensor, original: Tensor, *, with_integers: bool) -> Filler | None:
    """Return what to fill an output with whose result a tensor holds, or None.

    Args:
        tensor: an output, as a launch has left it.
        original: its content before.
        with_integers: whether others than floating-point outputs may be filled, too.
    """
    nan = _NANS.get(dtype_name(tensor.dtype))
    if nan is not None:
        return Filler(nan, 0)
    for flip in _FLIPS if with_integers else ():
        filler = Filler(None, flip)
        if not any(
            bool(filler.holds(part, before).any())
            for part, before in pieces_on_device(tensor, original)
        ):
            return filler
    return None
