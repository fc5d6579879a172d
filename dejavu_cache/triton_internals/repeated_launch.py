"""Repeat a launch with other pointers, as the layers of a model do, without binding it again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from typing import Any

from triton import knobs
from triton.runtime import driver

from .versions import active_hook, c_launcher, expand_descriptor, expandable_descriptors

__all__ = ["RepeatedLaunch", "current_stream"]


def current_stream() -> int:
    """Return the address of the current device's stream, without PyTorch's object around it."""
    active = driver.active
    return int(active.get_current_stream(active.get_current_device()))


class RepeatedLaunch:
    """A launch whose kernel, grid and numbers stay as they are.

    The new values must be specialised like the first ones: tensors of the same dtypes on the same
    device, with pointers that are aligned alike.

    Args:
        kernel: Triton's `CompiledKernel`, launched once on the current device.
        grid: number of programs, of up to three dimensions.
        arguments: all of the function's arguments by name, in order, including those of a config.
        changing: names of the arguments that later launches give.
    """

    def __init__(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        arguments: Mapping[str, Any],
        changing: Sequence[str],
    ) -> None:
        """Prepare the launch; the arguments are described at the class."""
        descriptors = expandable_descriptors(kernel)
        self._metadata: dict[str, Any] = {}
        self._arguments: list[Any] = []
        self._places: dict[str, int | slice] = {}
        for index, (name, value) in enumerate(arguments.items()):
            begin = len(self._arguments)
            if index in descriptors:
                self._metadata[name] = descriptors[index]
                self._arguments += self.expand(name, value)
                self._places[name] = slice(begin, len(self._arguments))
            else:
                # A tensor that is kept here would never be freed.
                self._arguments.append(None if name in changing else value)
                self._places[name] = begin
        self._at: list[Any] = [self._places[name] for name in changing]
        self._grid = (*grid, 1, 1)[:3]
        self._call = c_launcher(kernel, expanded=bool(descriptors))
        self._device = driver.active.get_current_device()

    def with_values(
        self, grid: tuple[int, ...], values: Mapping[str, Any], changing: Collection[str]
    ) -> RepeatedLaunch:
        """Return a copy in which some of the changing arguments have values for good.

        Args:
            grid: the copy's number of programs.
            values: of all changing arguments, by name.
            changing: names of those that still change, whose values here do not matter.
        """
        launch = copy(self)
        launch._grid = (*grid, 1, 1)[:3]
        launch._arguments = self._arguments.copy()
        for name, value in values.items():
            if name not in changing:
                launch._arguments[self._places[name]] = self.expand(name, value)
        launch._at = [self._places[name] for name in changing]
        return launch

    @property
    def expands(self) -> bool:
        """Whether launches take descriptors as `expand` returns them, and not as they are."""
        return bool(self._metadata)

    def expand(self, name: str, descriptor: Any) -> Any:
        """Return a TMA descriptor as launches take it; it may be kept for later ones.

        Args:
            name: the argument's name.
            descriptor: Triton's `TensorDescriptor`.
        """
        metadata = self._metadata.get(name)
        return descriptor if metadata is None else expand_descriptor(descriptor, metadata)

    def __call__(self, *values: Any) -> bool:
        """Launch with new values of the changing arguments, in their order.

        Args:
            *values: tensors and numbers, and descriptors as `expand` returns them.

        Returns:
            False if nothing was launched, because a hook wants to see each launch.
        """
        runtime = knobs.runtime
        if (
            active_hook(runtime.launch_enter_hook) is not None
            or active_hook(runtime.launch_exit_hook) is not None
        ):
            return False
        arguments = self._arguments.copy()  # another thread may launch meanwhile
        for index, value in zip(self._at, values, strict=True):
            arguments[index] = value
        stream = driver.active.get_current_stream(self._device)
        self._call(*self._grid, stream, None, None, None, arguments)
        return True
