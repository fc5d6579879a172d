"""Copies of a launch's tensors, by which to see and to undo what launches write."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from .argument_tensors import (
    free_memory,
    is_comparable,
    may_overlap,
    named_tensors,
    open_for_writes,
    size_in_bytes,
)
from .probe_contents import have_same_bits

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ArgumentSnapshot"]

MEMORY_SHARE = 0.5
"""Share of the device's free memory that copies may take; larger arguments count as inputs."""


class ArgumentSnapshot:
    """The content of a launch's tensors at one moment.

    Args:
        arguments: the launch's arguments by name.
        ignore: arguments to leave alone.

    Attributes:
        tensors: the tensors that were copied; parts of tuples have names such as `outs[0]`.
        originals: their copies.
    """

    def __init__(self, arguments: Mapping[str, Any], ignore: Collection[str]) -> None:
        """Copy nothing yet."""
        self._arguments = arguments
        self._ignore = ignore
        self.tensors: dict[str, Tensor] = {}
        self.originals: dict[str, Tensor] = {}

    def copy(self) -> None:
        """Copy the tensors, the smallest first, as far as memory reaches."""
        tensors = {
            part: tensor
            for name, value in self._arguments.items()
            if name not in self._ignore
            for part, tensor in named_tensors(name, value)
            if is_comparable(tensor)
        }
        budget = free_memory(tensors) * MEMORY_SHARE
        for name, tensor in sorted(tensors.items(), key=lambda item: size_in_bytes(item[1])):
            budget -= 2 * size_in_bytes(tensor)
            if budget < 0:
                break
            self.tensors[name] = tensor
            self.originals[name] = tensor.detach().clone()

    def restore(self) -> None:
        """Give the tensors their original content again, unseen by autograd."""
        for name, original in self.originals.items():
            self.write(name, original)

    def write(self, name: str, content: Tensor) -> None:
        """Replace a tensor's content, unseen by autograd."""
        with open_for_writes(self.tensors[name]) as tensor:
            tensor.copy_(content)

    def keep(self, names: Iterable[str]) -> None:
        """Free the copies of all other tensors."""
        self.originals = {name: self.originals[name] for name in names}

    def keep_present(self, name: str) -> None:
        """Copy a tensor's present content, whose first copy is gone."""
        self.originals[name] = self.tensors[name].detach().clone()

    def has_changed(self, name: str) -> bool:
        """Return whether a tensor's bits differ from the copy's."""
        return not have_same_bits(self.tensors[name], self.originals[name])

    def may_share_memory(self, name: str) -> bool:
        """Return whether a tensor may share memory with another argument, copied or not."""
        return any(
            may_overlap(self.tensors[name], tensor)
            for argument, value in self._arguments.items()
            for part, tensor in named_tensors(argument, value)
            if part != name
        )
