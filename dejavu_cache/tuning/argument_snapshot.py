"""Copies of tensors that launches write, on the device, or on the host where that is full."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..model.record import NO_MEMORY, NOT_COPYABLE
from ..system.signal_handlers import is_from_signal_handler
from .argument_tensors import (
    bits,
    free_memory,
    holds_elements,
    named_tensors,
    open_for_writes,
    pieces,
    pieces_on_device,
    refuse_uncopyable,
    span_of,
)
from .config_failures import is_out_of_memory

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LACKS_MEMORY", "ArgumentSnapshot", "copy_of"]

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
