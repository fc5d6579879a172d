"""Release compiled kernels in Triton's memory: what a tune leaves, and what it must not time.

Triton keeps every kernel that a function has ever launched, with its binary and the text of each
stage of its compilation. Of a tune, a program launches one of them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from .async_compile import await_kernel

__all__ = ["LoadedKernels", "compile_config", "note_settings", "release_outdated"]

_settings: WeakKeyDictionary[Any, Mapping[str, str] | None] = WeakKeyDictionary()
"""The settings of Triton under which each Python function was compiled; None: several."""

_HELD = "_dejavu_cache_outdated_kernels"
"""Attribute of a `JITFunction` that holds the kernels which it does not launch any more."""


def note_settings(function: Any, settings: Mapping[str, str]) -> None:
    """Note the settings under which the next kernels of a `JITFunction` are compiled."""
    if _settings.setdefault(function.fn, settings) != settings:
        _settings[function.fn] = None


def release_outdated(function: Any, settings: Mapping[str, str]) -> None:
    """Remove a function's kernels from memory if some were compiled under other settings.

    Triton compiles by the settings of the moment and launches what is in memory whatever they are
    by then, so a tune would time the code of the earlier ones.
    """
    if _settings.get(function.fn, settings) != settings:
        for kernels, *_ in list(function.device_caches.values()):
            # A CUDA graph may launch them on, and Triton 3.9 unloads what nobody holds.
            vars(function).setdefault(_HELD, []).append(dict(kernels))
            kernels.clear()
    _settings[function.fn] = settings


def compile_config(
    autotuner: Any, config: Any, args: Iterable[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Return the compiled kernel of a config, from memory if it was launched before.

    Args:
        autotuner: a `triton.runtime.Autotuner` whose `nargs` are the launch's.
        config: the `triton.Config`.
        args: the launch's positional arguments.
        kwargs: its keyword arguments.

    Raises:
        Exception: what Triton raises where the config cannot be compiled.
    """
    current = {**kwargs, **config.all_kwargs()}
    if config.pre_hook is not None:
        config.pre_hook({**autotuner.nargs, **current})
    return await_kernel(autotuner.fn.run(*args, **{**current, "warmup": True}))


class LoadedKernels:
    """The compiled kernels that a function has in memory at a moment.

    Args:
        function: a `JITFunction`; None where there is nothing to compile.
    """

    def __init__(self, function: Any) -> None:
        """Note which kernels are there."""
        self._caches = getattr(function, "device_caches", {})
        self._earlier = {
            device: set(kernels) for device, (kernels, *_) in list(self._caches.items())
        }

    def later(self) -> list[Any]:
        """Return the kernels that have come since, and whose compilation has ended."""
        return [kernel for _, _, kernel in self._later_entries()]

    def release_later(self, needed: Iterable[Any]) -> None:
        """Remove the kernels that have come since from Triton's cache in memory.

        A launch that needs one of them again gets it from Triton's cache on the disk. Before Triton
        3.9, which unloads what nobody holds, its module stays on the device.

        Args:
            needed: compiled kernels that stay.
        """
        needed_ids = set(map(id, needed))
        for kernels, key, kernel in self._later_entries():
            if id(await_kernel(kernel)) not in needed_ids:
                kernels.pop(key, None)

    def _later_entries(self) -> list[tuple[dict[Any, Any], Any, Any]]:
        """Return the cache, key and kernel of each; a tune in another thread may remove some.

        A list of a dictionary's items is made in steps, between which garbage collection may let
        the other thread run; a copy is made in one.
        """
        return [
            (kernels, key, kernel)
            for device, (kernels, *_) in list(self._caches.items())
            for key, kernel in kernels.copy().items()
            if key not in self._earlier.get(device, ())
            and (not hasattr(kernel, "future") or kernel.future.done())
        ]
