"""The hot path: from a resolved launch's arguments to the compiled kernel.

The first launch of each kind goes Triton's own way, `JITFunction.run`, which says which compiled kernel it ran.
That kernel is kept under one key: Triton's own specialisation of every argument, the values of the key arguments,
and the knobs that choose a kernel. The next launch with an equal key does what `JITFunction.run` would do from
there on: compare the globals, evaluate the grid, call the launcher.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ..model.buckets import Bucket
from ..model.resolution import Resolution
from ..notices import logger
from ..triton_internals.binder import Binder, binder_for
from ..triton_internals.upstream import driver, knobs
from ..triton_internals.versions import (
    active_hook,
    c_launcher,
    is_covered,
    kernel_follows_hooks,
)

__all__ = ["ChosenConfig", "HotPath"]

_ABSENT = object()


class ChosenConfig(NamedTuple):
    """The config that a launch runs.

    Attributes:
        config: the `triton.Config`.
        options: its meta-parameters and compiler options.
        until: when, on the monotonic clock, it is to be chosen again; 0 means at once, each time.
        resolution: how it was found, where there was a choice.
    """

    config: Any
    options: Mapping[str, Any]
    until: float = math.inf
    resolution: Resolution | None = None


class HotPath:
    """The launches of one autotuned `triton.jit` function.

    Args:
        autotuner: whose `fn` it is; its `best_config` is set by each launch.
        keys: the key arguments.
        buckets: the buckets of some of them.
        triton_way: launches `(args, kwargs)` through `JITFunction.run` and returns the compiled kernel and the
            config that it chose.
    """

    def __init__(
        self,
        autotuner: Any,
        keys: Sequence[str],
        buckets: Mapping[str, Bucket],
        triton_way: Callable[[tuple[Any, ...], dict[str, Any]], tuple[Any, ChosenConfig]],
    ) -> None:
        self._autotuner = autotuner
        self._fn = fn = autotuner.fn
        self._first = triton_way
        self._keys, self._buckets = keys, buckets
        self._tuned = frozenset(autotuner.configs[0].all_kwargs()) & frozenset(fn.arg_names)
        self._devices: dict[int, tuple[Binder, dict[Any, tuple[Any, ...]]]] = {}

    def launcher(self) -> Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]:
        """The function `(grid, args, kwargs)` that launches, and returns the compiled kernel as Triton does."""
        autotuner, fn, devices, triton_way = (
            self._autotuner,
            self._fn,
            self._devices,
            self._triton_way,
        )
        active_driver, all_knobs, monotonic, never = driver, knobs, time.monotonic, math.inf

        def launch(grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            try:
                active = active_driver.active
                device = active.get_current_device()
                binder, ready = devices[device]
                bound, key = binder(*args, **kwargs)
                config, tuned, until, name, kernel, call = ready[key]
            except (
                Exception
            ):  # not seen before, or wrong in a way that Triton has its own words for
                kernel = None
            if (
                kernel is None
                or fn.pre_run_hooks
                or grid is None
                or fn.device_caches[device][0].get(name)
                is not kernel  # Triton's cache has the last word
                or (until is not never and monotonic() > until)
            ):
                return triton_way(grid, args, kwargs)
            for (variable, _), (value, held) in fn.used_global_vals.items():
                if held.get(variable, _ABSENT) != value:
                    return triton_way(grid, args, kwargs)  # which raises
            autotuner.best_config = config
            bound.update(tuned)
            if callable(grid):
                grid = grid(bound)
            size = len(grid)
            runtime = all_knobs.runtime
            enter, leave = (
                active_hook(runtime.launch_enter_hook),
                active_hook(runtime.launch_exit_hook),
            )
            stream = active.get_current_stream(device)
            arguments = bound.values()
            call(
                grid[0],
                grid[1] if size > 1 else 1,
                grid[2] if size > 2 else 1,
                stream,
                None
                if enter is None and leave is None
                else kernel.launch_metadata(grid, stream, *arguments),
                enter,
                leave,
                arguments,
            )
            return kernel

        return launch

    def _triton_way(self, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A launch through `JITFunction.run`; what it compiled or found is kept for the next one."""
        kernel, chosen = self._first(args, {"grid": grid, "warmup": False, **kwargs})
        # A config's hook may change what an argument is (a descriptor's block): such launches are Triton's each time.
        if (
            chosen.until
            and chosen.config.pre_hook is None
            and is_covered(self._fn)
            and not kernel_follows_hooks()
        ):
            try:
                self._keep(chosen, kernel, args, kwargs)
            except (
                Exception
            ) as error:  # it ran: that it cannot be kept costs later launches microseconds
                logger.debug("%s is launched through Triton: %r", self._fn.__name__, error)
        return kernel

    def _keep(
        self, chosen: ChosenConfig, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        fn, device = self._fn, driver.active.get_current_device()
        tuned = {
            name: value for name, value in chosen.options.items() if name in fn.signature.parameters
        }
        name = next(
            (key for key, held in reversed(fn.device_caches[device][0].items()) if held is kernel),
            None,
        )
        if name is None or tuned.keys() != self._tuned:
            return
        if device not in self._devices:
            self._devices[device] = binder_for(fn, self._tuned, self._keys, self._buckets), {}
        binder, ready = self._devices[device]
        ready[binder(*args, **kwargs)[1]] = (
            chosen.config,
            tuned,
            chosen.until,
            name,
            kernel,
            c_launcher(kernel),
        )
