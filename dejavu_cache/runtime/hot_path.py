"""Launch kernels whose config and binary are known without going through `JITFunction.run`.

The first launch of each kind goes through `JITFunction.run`, which returns the compiled kernel. It
is kept under one key: Triton's specialisation of every argument, the values of the key arguments,
and the knobs that choose a kernel. The next launch with an equal key does what `JITFunction.run`
would do from there on: compare the globals, evaluate the grid, call the launcher.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ..system.background_threads import dropping_errors, let_signals_through
from ..triton_internals.binder import Binder, binder_for
from ..triton_internals.versions import (
    HOOK_CHAIN,
    c_launcher,
    driver,
    is_covered,
    kernel_follows_hooks,
    knobs,
)
from .choices import ChosenConfig
from .launch import Launch

if TYPE_CHECKING:
    from .autotuner import CachedAutotuner

_ABSENT = object()

_ReadyLaunch = tuple[
    Any, dict[str, Any], dict[str, Any], float, Iterator[int], str, Any, Callable[..., Any]
]
"""What a known launch runs; a plain tuple, which Python unpacks faster than a named one.

- config: the `triton.Config`;
- content: the attributes that the config had, since a program may change it in place;
- tuned: the config's values of the kernel's parameters;
- until: the time until which the config is used;
- launches: counts the launches until then;
- name: the compiled kernel's key in Triton's cache;
- kernel: the compiled kernel;
- call: Triton's launcher of it.
"""

_MOST_LAUNCHES = 1 << 16
"""Launches that are kept; where a number is a key without a bucket, each new one adds one."""


class HotPath:
    """Launcher of one autotuned `triton.jit` function; a launch sets the tuner's `best_config`."""

    def __init__(self, autotuner: CachedAutotuner) -> None:
        """Set up an empty cache."""
        self._autotuner, declaration = autotuner, autotuner.declaration
        self._fn = fn = autotuner.fn
        self._keys, self._pruning = declaration.scenario_key.keys, declaration.pruning
        self._buckets = declaration.options["buckets"]
        self._tuned = frozenset(autotuner.configs[0].all_kwargs()) & frozenset(fn.arg_names)
        # Ready launches by their key; where the kernel prunes, also by what it reads.
        self._devices: dict[int, tuple[Binder, dict[Any, _ReadyLaunch]]] = {}
        self._generation = 0

    def forget(self) -> None:
        """Choose the config of each launch anew."""
        self._generation += 1
        self._devices.clear()

    def launcher(self) -> Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]:
        """Return a function of `(grid, args, kwargs)` that launches and returns the kernel.

        It finds the ready launch by its key, leaves to Triton what Triton would treat otherwise by
        now, and calls the kernel's launcher. It is one function, and all that it uses are local
        names: a call or the look-up of an attribute would be a measurable part of a launch.
        """
        autotuner, devices = self._autotuner, self._devices
        function = vars(self._fn)
        launch_and_keep = self._launch_and_keep
        active_driver, all_knobs, monotonic, never = driver, knobs, time.monotonic, math.inf
        hook_chain = HOOK_CHAIN
        form_read = None if self._pruning is None else self._pruning.form

        def launch(grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            try:
                active = active_driver.active
                device = active.get_current_device()
                binder, ready = devices[device]
                bound, key = binder(*args, **kwargs)
                if form_read is not None:
                    key = form_read(args, kwargs), key
                config, content, tuned, until, launches, name, kernel, call = ready[key]
                is_ready = config.__dict__ == content
            except Exception as error:  # unknown key, or what Triton's own path will report
                if not isinstance(error, (KeyError, TypeError)):  # usual, and a look takes 0.2 ms
                    let_signals_through(error)
                is_ready = False
            if (
                not is_ready
                or function["pre_run_hooks"]
                or "run" in function  # a program has wrapped the function's launches
                or grid is None
                # Triton may have dropped or replaced the kernel.
                or function["device_caches"][device][0].get(name) is not kernel
                or (until is not never and monotonic() > until)
            ):
                return launch_and_keep(grid, args, kwargs)
            used_globals = function["used_global_vals"]
            if used_globals:
                for (variable, _), (value, namespace) in used_globals.items():
                    if namespace.get(variable, _ABSENT) != value:
                        return launch_and_keep(grid, args, kwargs)  # Triton raises there

            if until is not never:
                next(launches)
            autotuner.best_config = config
            bound.update(tuned)
            if callable(grid):
                grid = grid(bound)
            size = len(grid)
            stream = active.get_current_stream(device)
            arguments = bound.values()
            runtime = all_knobs.runtime
            enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
            if enter.__class__ is hook_chain and not enter.calls:  # an empty chain is no hook
                enter = None
            if leave.__class__ is hook_chain and not leave.calls:
                leave = None
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

    def _launch_and_keep(self, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Launch through `JITFunction.run`, and keep the kernel for the next launch."""
        if self._autotuner._hot_path is not self:  # the program has changed what is declared
            return self._autotuner._launch(grid, args, kwargs)
        generation = self._generation
        launch = Launch(self._autotuner, args, {"grid": grid, "warmup": False, **kwargs})
        kernel, chosen = launch.run()
        # A hook may change an argument (a descriptor's block), so Triton must bind it each time.
        if (
            chosen.until
            and generation == self._generation
            and chosen.config.pre_hook is None
            and self._autotuner.fn is self._fn
            and is_covered(self._fn)
            and not kernel_follows_hooks()
        ):
            # The kernel ran; later launches take microseconds longer.
            with dropping_errors(f"{self._fn.__name__} is launched through Triton"):
                self._keep(chosen, generation, kernel, args, kwargs)
        return kernel

    def _keep(
        self,
        chosen: ChosenConfig,
        generation: int,
        kernel: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        device = driver.active.get_current_device()
        ready_launch = self._prepare(chosen, kernel, device)
        if ready_launch is None:
            return
        if device not in self._devices:
            binder = binder_for(self._fn, self._tuned, self._keys, self._buckets)
            self._devices[device] = binder, {}
        binder, ready = self._devices[device]
        if len(ready) >= _MOST_LAUNCHES:
            ready.clear()
        key = binder(*args, **kwargs)[1]
        ready[key if self._pruning is None else (self._pruning.form(args, kwargs), key)] = (
            ready_launch
        )
        if generation != self._generation:  # another thread has learned of a change meanwhile
            self.forget()

    def _prepare(self, chosen: ChosenConfig, kernel: Any, device: int) -> _ReadyLaunch | None:
        """Return what launches a kernel again, or None where only Triton can."""
        fn, config = self._fn, chosen.config
        content = {**vars(config), "kwargs": dict(config.kwargs)}
        if config.all_kwargs() != chosen.options:  # changed since it was launched
            return None
        tuned = {
            name: value for name, value in chosen.options.items() if name in fn.signature.parameters
        }
        # Triton's cache is searched from its end, where the newest kernels are.
        newest_first = reversed(fn.device_caches[device][0].items())
        name = next((name for name, cached in newest_first if cached is kernel), None)
        if name is None or tuned.keys() != self._tuned:
            return None
        call = c_launcher(kernel)
        return config, content, tuned, chosen.until, chosen.launches, name, kernel, call
