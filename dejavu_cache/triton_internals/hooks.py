"""The only writer of Triton's globals: knobs, driver, `triton.autotune` and `Autotuner`'s methods.

It also has what stands in for a driver where there is no device, and builds the host modules by
which Triton talks to a vendor's driver and launches kernels.

The functions import Triton when they are called, so that their callers can be imported without it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import CompiledKernel
    from triton.runtime.jit import JITFunction

__all__ = [
    "DevicelessDriver",
    "UnloadedModule",
    "add_compilation_listener",
    "build_driver_module",
    "build_host_modules_with",
    "build_launcher",
    "cache_manager",
    "foreign_run",
    "former_run",
    "hash_callees_first",
    "is_autotune_replaced_by",
    "platform_key",
    "refusing_compilation",
    "replace_autotune",
    "replace_bench",
    "retry_parsing",
    "set_cache_folder",
    "set_cache_manager",
    "set_interpreter_memory",
    "set_platform_key",
    "set_target",
    "store_binaries_in",
]


_PARSES = 9
"""Number of times that a kernel is parsed again."""


def add_compilation_listener(listener: Callable[..., None]) -> None:
    """Call a listener at every compilation, after those that were set before.

    Args:
        listener: takes what `knobs.compilation.listener` takes, as keywords: `src`, `metadata`,
            `cache_hit` and others that depend on Triton's version.
    """
    from triton import knobs

    previous = knobs.compilation.listener

    def notify(**event: Any) -> None:
        if previous is not None:
            previous(**event)
        listener(**event)

    knobs.compilation.listener = notify


@cache
def retry_parsing() -> None:
    """Have Triton parse a kernel again if Python confuses it with another thread's parse.

    Before 3.11.8, all threads share the parser's count of the depth, and one of them fails.
    """
    from triton.runtime.jit import JITFunction

    if sys.version_info[:2] != (3, 11):
        return
    owner: Any = next(kind for kind in JITFunction.__mro__ if "parse" in vars(kind))
    original = owner.parse

    def parse(function: Any) -> Any:
        for _ in range(_PARSES):
            with suppress(SystemError):
                return original(function)
        return original(function)

    owner.parse = parse


@cache
def hash_callees_first() -> None:
    """Have a kernel's key contain the globals of the functions that it calls.

    Triton 3.9 sees to that. Before, the key contained them only if something else had computed the
    functions' keys: it depended on which kernel a process launched first.
    """
    from triton.runtime.jit import DependenciesFinder

    original = getattr(DependenciesFinder, "_update_hash", None)
    if original is None:
        return

    def update_hash(finder: Any, function: Any) -> None:
        # Reading the key finds the function's globals.
        getattr(function, "cache_key", None)
        original(finder, function)

    DependenciesFinder._update_hash = update_hash


_thread = threading.local()


@contextmanager
def refusing_compilation(function: JITFunction) -> Iterator[list[JITFunction]]:
    """Have this thread's launches of a function do nothing where they would compile.

    Triton asks a hook before it compiles a kernel, or loads it from its folder. A hook that a
    program has set is asked too. Other functions, such as those that a config's hook launches, are
    compiled.

    Args:
        function: the `JITFunction`.

    Yields:
        A list that gets the function at each refusal.
    """
    from triton import knobs

    previous = knobs.runtime.jit_cache_hook
    if not getattr(previous, "refuses_for_dejavu_cache", False):

        def refuse(*args: Any, fn: Any, **kwargs: Any) -> Any:
            for refused, refusals in getattr(_thread, "refused", ()):
                if refused is fn.jit_function:
                    refusals.append(refused)
                    return True
            return previous(*args, fn=fn, **kwargs) if previous is not None else None

        refuse.refuses_for_dejavu_cache = True  # type: ignore[attr-defined]
        knobs.runtime.jit_cache_hook = refuse
    outer: tuple[Any, ...] = getattr(_thread, "refused", ())
    refusals: list[JITFunction] = []
    _thread.refused = ((function, refusals), *outer)
    try:
        yield refusals
    finally:
        _thread.refused = outer


def cache_manager() -> Any:
    """Return the class of the cache managers that Triton uses now."""
    from triton import knobs
    from triton.runtime.cache import FileCacheManager

    return knobs.cache.manager_class or FileCacheManager


def set_cache_manager(manager: Any) -> None:
    """Replace the class of Triton's cache managers."""
    from triton import knobs

    knobs.cache.manager_class = manager


def set_cache_folder(folder: str) -> None:
    """Have Triton keep its cache in a folder."""
    from triton import knobs

    knobs.cache.dir = folder


def set_interpreter_memory(memory: Any) -> None:
    """Have Triton's interpreter load and store by an object's methods."""
    from triton.runtime import interpreter

    interpreter._interpreter = memory


def set_platform_key(key: str) -> None:
    """Fix the platform's part in the keys of host modules.

    Triton computes the key with the command `file`; without it, the key would differ.
    """
    from triton.runtime import build

    build.platform_key = lambda: key


def store_binaries_in(folder: str) -> None:
    """Have Triton keep binaries alone, without its intermediate representations, in a folder."""
    from triton import knobs

    knobs.compilation.store_binary_only = True
    knobs.compilation.always_compile = False
    knobs.cache.dir = folder


def build_host_modules_with(libcuda_folder: str) -> None:
    """Have Triton link host modules against the `libcuda` of a folder, and not load what it built.

    Args:
        libcuda_folder: holds a `libcuda.so.1` to link against; it may be empty.
    """
    from triton import knobs
    from triton.runtime import build

    knobs.nvidia.libcuda_path = libcuda_folder
    build._load_module_from_path = lambda name, path: UnloadedModule()


def set_target(target: GPUTarget) -> None:
    """Make Triton believe that the current device is of a kind, on a machine without one.

    Args:
        target: Triton's `GPUTarget`.
    """
    from triton.runtime import driver

    driver.set_active(DevicelessDriver(target))


def replace_bench(bench: Callable[..., Any]) -> None:
    """Replace `Autotuner._bench`, which measures one config."""
    from triton.runtime.autotuner import Autotuner

    Autotuner._bench = bench


_own_run: list[Any] = []
"""What `replace_autotune` has put in the place of `Autotuner.run`, and what was there before."""


def replace_autotune(autotune: Callable[..., Any], run: Callable[..., Any] | None) -> None:
    """Replace `triton.autotune`, under each of its names, and `Autotuner.run`.

    Args:
        autotune: the decorator.
        run: the method; None puts back what was there before, unless another package has replaced
            it since.
    """
    import triton
    from triton.runtime import autotuner

    triton.autotune = autotune
    triton.runtime.autotune = autotune
    autotuner.autotune = autotune
    if run is not None:
        _own_run[:] = run, autotuner.Autotuner.run
        autotuner.Autotuner.run = run
    elif _own_run and autotuner.Autotuner.run is _own_run[0]:
        autotuner.Autotuner.run = _own_run[1]


def former_run() -> Any:
    """Return `Autotuner.run` before it was replaced: Triton's, or what another package put there.

    It is known once `replace_autotune` has put a method in its place.
    """
    return _own_run[1]


def foreign_run() -> str | None:
    """Return the module that has replaced `Autotuner.run`, or None if it is Triton's or ours."""
    from triton.runtime.autotuner import Autotuner

    run = Autotuner.run
    if _own_run and run is _own_run[0]:
        run = _own_run[1]
    if getattr(run, "__globals__", None) is vars(sys.modules[Autotuner.__module__]):
        return None
    return str(getattr(run, "__module__", None) or type(run).__module__)


def is_autotune_replaced_by(autotune: Callable[..., Any]) -> bool:
    """Return whether a decorator stands in for `triton.autotune` now."""
    from triton.runtime import autotuner

    return autotuner.autotune is autotune


class UnloadedModule:
    """Module that is built and not loaded: it has every attribute, and calling one does nothing."""

    def __getattr__(self, name: str) -> Any:
        """Return another stand-in for any attribute."""
        return UnloadedModule()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return another stand-in."""
        return UnloadedModule()


class DevicelessDriver:
    """Driver that knows the target to compile for, and nothing else.

    Args:
        target: Triton's `GPUTarget`.
    """

    def __init__(self, target: GPUTarget) -> None:
        """Set the target to compile for."""
        self.utils = UnloadedModule()
        self._target = target

    def get_current_target(self) -> GPUTarget:
        """Return the target to compile for."""
        return self._target

    def get_current_device(self) -> int:
        """Return the index of the first device."""
        return 0


def platform_key() -> str:
    """Return the platform's part in the keys of host modules."""
    from triton.runtime import build

    return str(build.platform_key())


def build_driver_module(backend: str) -> None:
    """Build the module that calls the driver's API.

    Args:
        backend: `cuda` or `hip`.
    """
    if backend == "cuda":
        from triton.backends.nvidia.driver import CudaUtils

        CudaUtils()
    else:
        from triton.backends.amd.driver import HIPUtils

        HIPUtils()


def build_launcher(backend: str, compiled: CompiledKernel) -> None:
    """Build the module that launches a kernel.

    Args:
        backend: `cuda` or `hip`.
        compiled: Triton's `CompiledKernel`.
    """
    if backend == "cuda":
        from triton.backends.nvidia.driver import CudaLauncher

        CudaLauncher(compiled.src, compiled.metadata)
    else:
        from triton.backends.amd.driver import HIPLauncher

        HIPLauncher(compiled.src, compiled.metadata)
