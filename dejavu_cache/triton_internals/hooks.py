"""The only writer of Triton's globals: knobs, driver, `triton.autotune` and `Autotuner`'s methods.

It also has what stands in for a driver where there is no device, builds the host modules by which
Triton talks to a vendor's driver and launches kernels, and has the cache managers that write and
read folders of binaries: Triton's own cache holds absolute paths and must be writable.

The functions import Triton when they are called, so that their callers can be imported without it.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, cached_property, partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

from ..system.background_threads import start_thread
from ..system.notices import warn_once
from ..system.safe_files import private_temporary_folder

if TYPE_CHECKING:
    from triton.backends.compiler import GPUTarget
    from triton.runtime.jit import JITFunction

    from ..model.scenario import Device

_PARSES = 9
"""Number of times that a kernel is parsed again."""


def add_compilation_listener(listener: Callable[..., None]) -> None:
    """Call a listener at every compilation, after those that were set before.

    It takes what `knobs.compilation.listener` takes, as keywords: `src`, `metadata`, `cache_hit`
    and others that depend on Triton's version.
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

    if not (3, 11) <= sys.version_info < (3, 11, 8):
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


def set_interpreter_memory(memory: Any) -> None:
    """Have Triton's interpreter load and store by an object's methods."""
    from triton.runtime import interpreter

    interpreter._interpreter = memory


def build_binaries_in(folder: str) -> None:
    """Have Triton keep binaries alone, without its intermediate representations, in a folder.

    No file in it has an absolute path.
    """
    from triton import knobs

    knobs.compilation.store_binary_only = True
    knobs.compilation.always_compile = False
    knobs.cache.dir = folder
    knobs.cache.manager_class = relocatable_cache()


def build_host_modules_with(libcuda_folder: str) -> None:
    """Have Triton link host modules against the `libcuda` of a folder, and not load what it built.

    The `libcuda.so.1` in there may be empty. The modules' keys are the same on every builder of a
    platform, so that a process can use folders of several: Triton's own have what `file` says.
    """
    from triton import knobs
    from triton.runtime import build

    knobs.nvidia.libcuda_path = libcuda_folder
    build.platform_key = sysconfig.get_platform
    build._load_module_from_path = lambda name, path: UnloadedModule()


def set_target(target: GPUTarget, device: Device | None = None) -> None:
    """Make Triton believe that the current device is of a kind, on a machine without one.

    A device is given if launches ask for more than its target.
    """
    from triton.runtime import driver

    driver.set_active(DevicelessDriver(target, device))


@contextmanager
def noting_compilations() -> Iterator[list[tuple[Any, dict[str, Any]]]]:
    """Have launches note what they would compile, and compile nothing.

    Yields:
        A list that gets Triton's `ASTSource` and options of each.
    """
    from triton import compiler

    noted: list[tuple[Any, dict[str, Any]]] = []
    original = compiler.compile

    def note(src: Any, target: Any = None, options: Any = None, **_: Any) -> object:
        noted.append((src, dict(options or {})))
        return object()

    compiler.compile = note
    try:
        yield noted
    finally:
        compiler.compile = original


def prepare_compilations(precompiler: Any) -> None:
    """Have an object's `prepare` precede compilations of kernels that were not launched yet.

    It may fill Triton's cache; its errors are those of the compilation.
    """
    from triton import compiler

    original = compiler.compile

    def compile_prepared(src: Any, target: Any = None, options: Any = None, **kwargs: Any) -> Any:
        precompiler.prepare(src, target, options)
        return original(src, target=target, options=options, **kwargs)

    compiler.compile = compile_prepared


def replace_bench(bench: Callable[..., Any]) -> None:
    """Replace `Autotuner._bench`, which measures one config."""
    from triton.runtime.autotuner import Autotuner

    Autotuner._bench = bench


def replace_autotune(autotune: Callable[..., Any], run: Any) -> None:
    """Replace `triton.autotune`, under each of its names, and `Autotuner.run`.

    Args:
        autotune: the decorator.
        run: the method, which gets an attribute `replaced`: what was there before. None puts that
            back, unless another package has replaced it since.
    """
    import triton
    from triton.runtime import autotuner

    triton.autotune = autotune
    triton.runtime.autotune = autotune
    autotuner.autotune = autotune
    present = autotuner.Autotuner.run
    if run is not None and run is not present:
        run.replaced, autotuner.Autotuner.run = present, run
    elif run is None:
        autotuner.Autotuner.run = getattr(present, "replaced", present)


def foreign_run() -> str | None:
    """Return the module that has replaced `Autotuner.run`, or None if it is Triton's or ours."""
    from triton.runtime.autotuner import Autotuner

    run = getattr(Autotuner.run, "replaced", Autotuner.run)
    if getattr(run, "__globals__", None) is vars(sys.modules[Autotuner.__module__]):
        return None
    return str(getattr(run, "__module__", None) or type(run).__module__)


class UnloadedModule:
    """Module that is built and not loaded: it has every attribute, and calling one does nothing."""

    def __getattr__(self, name: str) -> Any:
        """Return another stand-in for any attribute."""
        return UnloadedModule()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return another stand-in."""
        return UnloadedModule()


class DevicelessDriver:
    """Driver that knows the target to compile for, and perhaps a GPU, but has no device."""

    def __init__(self, target: GPUTarget, device: Device | None = None) -> None:
        """Set the target to compile for."""
        self.utils = UnloadedModule()
        self.pretended = device
        self._target = target

    def get_current_target(self) -> GPUTarget:
        """Return the target to compile for."""
        return self._target

    def get_current_device(self) -> int:
        """Return an index of the GPU's own: Triton keeps what is compiled by the device's index."""
        return hash(self.pretended) if self.pretended else 0

    def get_current_stream(self, device: int) -> int:
        """Return the address of no stream."""
        return 0


def host_module_builders(backend: str) -> tuple[Any, Any]:
    """Return Triton's classes that build host modules as they are made, for `cuda` or `hip`.

    The first builds the module that calls the driver's API, and the second one that launches a
    kernel: it takes a `CompiledKernel`'s source and metadata.
    """
    if backend == "cuda":
        from triton.backends.nvidia.driver import CudaLauncher, CudaUtils

        return CudaUtils, CudaLauncher
    from triton.backends.amd.driver import HIPLauncher, HIPUtils

    return HIPUtils, HIPLauncher


class _ModuleBuiltAside:
    """The functions by which Triton calls CUDA; their first use waits for a thread's C compiler."""

    def __init__(self, build: Any) -> None:
        self.build, self.thread = build, None

    def compile(self) -> None:
        with suppress(Exception):  # the first use compiles again, and raises it
            vars(self).update(vars(self.build()))

    def __getattr__(self, name: str) -> Any:
        if self.thread is not None:
            self.thread.join()  # at once in a forked child, which has no such thread
        if name not in vars(self):
            vars(self).update(vars(self.build()))
        return object.__getattribute__(self, name)


def build_driver_aside() -> None:
    """Take Triton's driver, whose module is built while records are read and kernels compile."""
    from triton.runtime import driver

    nvidia: Any = sys.modules.get("triton.backends.nvidia.driver")
    if nvidia is None or driver._active is not None:
        return
    aside: Any = _ModuleBuiltAside(nvidia.CudaUtils)
    nvidia.CudaUtils = lambda: aside
    try:
        is_taken = getattr(driver.active, "utils", None) is aside
    finally:
        nvidia.CudaUtils = aside.build
    if is_taken:
        aside.thread = start_thread(aside.compile, "dejavu-cache driver module")


@cache
def run_ptxas_once() -> None:
    """Have Triton run a ptxas once: it asks for its release, and then for all that it says."""
    from triton import knobs

    ask: Any = cache(partial(subprocess.run, check=True, capture_output=True))

    def check_output(words: Sequence[str], **options: Any) -> Any:
        if words[1:] != ["--version"]:
            return subprocess.check_output(words, **options)
        answer = ask(tuple(words))
        return answer.stdout + (answer.stderr if "stderr" in options else b"")

    names = {**vars(subprocess), "check_output": check_output}
    nvidia: Any = sys.modules.get("triton.backends.nvidia.compiler", knobs)
    knobs.subprocess = nvidia.subprocess = SimpleNamespace(**names)


CUDA_UTILS = f"cuda_utils{sysconfig.get_config_var('EXT_SUFFIX')}"
"""Triton's module that calls the CUDA driver; from 3.8 on, its key depends on the driver's path."""


class BinarySource(Protocol):
    """Binaries that may be loaded, by Triton's keys."""

    def find(self, key: str, name: str) -> Path | None:
        """Return the path of a file that was checked, or None."""


def serve_binaries(sources: Sequence[BinarySource], host_key: str) -> None:
    """Put binaries before Triton's cache, for the rest of the process.

    The host key is the platform's part in the keys of the builder's host modules.
    """
    from triton.runtime import build

    set_cache_manager(sealed_cache(sources, cache_manager()))
    hash_callees_first()
    # Triton computes its key with the command `file`; without it, the key would differ.
    build.platform_key = lambda: host_key


def sealed_cache(sources: Sequence[BinarySource], manager: Any) -> Any:
    """Return a cache manager class that reads sealed binaries, and writes elsewhere.

    The sources are asked in order. All other files are the manager's, which gets a temporary folder
    where it cannot write.
    """
    from triton.runtime.cache import CacheManager

    class SealedCache(CacheManager):  # type: ignore[misc]
        def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
            self._arguments = key, override, dump
            self._sources = () if override or dump else tuple(sources)

        @cached_property
        def _writable(self) -> Any:
            return _writable_manager(manager, self._arguments)

        def _find(self, filename: str) -> str | None:
            keys = [self._arguments[0], *([cuda_utils_key()] if filename == CUDA_UTILS else ())]
            found = (source.find(key, filename) for key in keys for source in self._sources)
            return next((str(path) for path in found if path is not None), None)

        def get_file(self, filename: str) -> str | None:
            path: str | None = self._find(filename) or self._writable.get_file(filename)
            return path

        def get_group(self, filename: str) -> dict[str, str] | None:
            if listing := self._find(f"__grp__{filename}"):
                names = json.loads(Path(listing).read_bytes())["child_paths"]
                paths = {name: path for name in names if (path := self._find(name))}
                if len(paths) == len(names):  # none of them must not be loaded
                    return paths
            group: dict[str, str] | None = self._writable.get_group(filename)
            return group

        def put(self, data: Any, filename: str, binary: bool = True) -> str:
            return str(self._writable.put(data, filename, binary=binary))

        def put_group(self, filename: str, group: dict[str, str]) -> Any:
            return self._writable.put_group(filename, group)

    return SealedCache


def relocatable_cache() -> Any:
    """Return a cache manager class whose files hold no absolute paths."""
    from triton.runtime.cache import FileCacheManager

    class RelocatableCache(FileCacheManager):  # type: ignore[misc]
        def get_file(self, filename: str) -> str | None:
            self._use_portable_key(filename)
            path: str | None = super().get_file(filename)
            return path

        def put(self, data: Any, filename: str, binary: bool = True) -> str:
            self._use_portable_key(filename)
            return str(super().put(data, filename, binary=binary))

        def _use_portable_key(self, filename: str) -> None:
            if filename == CUDA_UTILS and self.key != cuda_utils_key():
                super().__init__(cuda_utils_key())

        def put_group(self, filename: str, group: dict[str, str]) -> Any:
            return super().put_group(filename, {name: name for name in sorted(group)})

        def get_group(self, filename: str) -> dict[str, str] | None:
            path = self.get_file(f"__grp__{filename}")
            if path is None:
                return None
            names = json.loads(Path(path).read_text(encoding="utf-8"))["child_paths"]
            return {name: self._make_path(name) for name in names}

    return RelocatableCache


@cache
def cuda_utils_key() -> str:
    """Return a key for `CUDA_UTILS` that does not depend on the driver's path."""
    import triton

    source = Path(triton.__file__).parent / "backends" / "nvidia" / "driver.c"
    digest = hashlib.sha256(source.read_bytes()).hexdigest() if source.is_file() else ""
    return f"cuda-utils-{digest[:24]}"


def _writable_manager(manager: Any, arguments: tuple[str, bool, bool]) -> Any:
    """Return a cache manager that can write: in a temporary folder, if not where Triton would."""
    from triton import knobs

    try:
        return manager(*arguments)
    except OSError as error:
        folder = private_temporary_folder() / "triton"
        warn_once(
            "triton cache", f"Triton's cache cannot be written ({error}): {folder} is used instead"
        )
        knobs.cache.dir = str(folder)
        return manager(*arguments)
