"""The environment of this process: everything but the scenario that a timing depends on.

It is the device, Triton's version and code generator, and the settings that change what Triton
generates. Triton is asked for all its knobs: one is left out if it is known to change no code, or
has its default value. Any other counts, so an unknown setting makes an environment of its own, and
so does every variable that Triton makes part of its binaries' keys.

Triton is imported when it is asked, so that commands run where it is not installed.
"""

from __future__ import annotations

import hashlib
import math
import os
import platform
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from ..errors import UnknownDeviceError
from ..model.scenario import Device, Environment, as_text
from ..system.background_threads import start_thread, uninterrupted
from .hooks import run_ptxas_once
from .identity import PROCESS

if TYPE_CHECKING:
    from triton.backends.compiler import BaseBackend, GPUTarget

INTERPRETER = "Triton interpreter"
"""The device's name where kernels are interpreted on the CPU."""

INTERPRETER_INDEX = -1
"""The interpreter's index among the devices."""


def is_interpreting() -> bool:
    """Return whether Triton runs kernels in its interpreter."""
    from triton import knobs

    return bool(knobs.runtime.interpret)


def has_device() -> bool:
    """Return whether kernels run here: on a GPU that Triton finds, or in its interpreter."""
    with suppress(RuntimeError):
        return is_interpreting() or current_device() is not None
    return False


def current_device() -> int:
    """Return the index of the device that a compiled kernel would be launched on now."""
    from triton.runtime import driver

    index: int = driver.active.get_current_device()
    return index


def current_target() -> GPUTarget:
    """Return the current device's `GPUTarget`: backend (`cuda` or `hip`) and architecture."""
    from triton.runtime import driver

    return driver.active.get_current_target()


def pretended_device() -> Device | None:
    """Return the GPU that `hooks.set_target` has made this process believe in, or None."""
    from triton.runtime import driver

    with suppress(RuntimeError):  # there is no driver
        return getattr(driver.active, "pretended", None)
    return None


def backend_for(target: GPUTarget) -> BaseBackend:
    """Return Triton's compiler backend for a `GPUTarget`."""
    from triton.compiler.compiler import make_backend

    return make_backend(target)


def backend_hash(target: GPUTarget) -> str:
    """Return the part of a binary's key that stands for the compiler's version."""
    run_ptxas_once()
    return str(backend_for(target).hash())


def supported_float8() -> tuple[str, ...]:
    """Return Triton's names of the float8 types that kernels can use on the current device."""
    return tuple(backend_for(current_target()).parse_options({}).supported_fp8_dtypes)


def current_environment(device: int) -> Environment:
    """Return the environment of a device of this process, by its index or `INTERPRETER_INDEX`."""
    environment = toolchain_on(device)
    if device == INTERPRETER_INDEX:
        return environment
    # A program may set a knob at any time.
    return environment.model_copy(update={"variables": compiler_settings()})


def environment_here() -> Environment:
    """Return the environment in which a kernel would run now: a GPU's, or the interpreter's."""
    return current_environment(INTERPRETER_INDEX if is_interpreting() else current_device())


@cache
def toolchain_on(device: int) -> Environment:
    """Return a device's environment without Triton's settings, which a program may change.

    Raises:
        Exception: the device is not known.
    """
    import triton

    if device == INTERPRETER_INDEX:
        return Environment(
            device=Device(
                name=INTERPRETER, arch=platform.machine(), units=os.cpu_count() or 0, memory_gib=0
            ),
            triton=triton.__version__,
            codegen=f"Python {platform.python_version()}",
        )
    target = current_target()
    return Environment(
        device=_gpu(device, target),
        triton=triton.__version__,
        codegen=describe_codegen(backend_hash(target)),
    )


def _gpu(device: int, target: GPUTarget) -> Device:
    import torch

    if target.backend not in ("cuda", "hip"):
        raise UnknownDeviceError(
            f"devices of Triton's backend {target.backend!r} have no place in records yet"
        )
    if pretended := pretended_device():
        return pretended
    properties = torch.cuda.get_device_properties(device)
    arch = f"sm_{target.arch}" if target.backend == "cuda" else str(target.arch)
    return Device(
        name=properties.name.strip(),
        arch=arch,
        units=properties.multi_processor_count,
        memory_gib=nominal_memory(properties.total_memory),
    )


# Sizes that GPUs and their slices are sold in, as near to each other as two sizes of one model get;
# 79, 140 and 178 are what drivers leave of 80, 141 and 180 GB.
_SMALL_SIZES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 79, 96, 112, 128)
_LARGE_SIZES = (140, 160, 178, 192, 224, 256, 288, 320, 384, 448, 512)


def nominal_memory(total_bytes: int) -> int:
    """Return the size in GiB that a GPU of this much memory is sold as.

    Drivers reserve some memory, and not each release the same; models differ by far more.
    """
    # Some drivers report a little more than the size.
    least = total_bytes / 2**30 * 0.98
    sizes = (size for size in (*_SMALL_SIZES, *_LARGE_SIZES) if size >= least)
    return next(sizes, 64 * math.ceil(least / 64))


def describe_codegen(backend_hash: str) -> str:
    """Return the name of a backend's compiler, such as `ptxas 12.9.86`, from the backend's hash.

    AMD's has the target alone, for Triton comes with the LLVM that compiles for it. A hash of
    another form stands for itself, shortened.
    """
    if release := re.search(r"V(\d+(?:\.\d+)+)", backend_hash):
        return f"ptxas {release.group(1)}"
    if target := re.fullmatch(
        r"GPUTarget\(backend='hip', arch='(\w+)', warp_size=(\d+)\)", backend_hash.strip()
    ):
        return f"Triton's LLVM for {target[1]}, warps of {target[2]}"
    return " ".join(backend_hash.split())[:200]


def is_capturing_graph() -> bool:
    """Return whether the current stream is being captured into a CUDA or HIP graph."""
    torch = sys.modules.get("torch")
    return bool(torch and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


def triton_version() -> str | None:
    """Return the version of the distribution that contains the package `triton`, or None.

    PyTorch builds for ROCm and XPU have distributions of their own, such as `pytorch-triton-rocm`.
    """
    with suppress(PackageNotFoundError):
        return version("triton")
    names = packages_distributions().get("triton")
    return version(names[0]) if names else None


_NEUTRAL = frozenset(
    # Groups of knobs
    {"autotuning", "build", "cache", "proton", "redis"}
    # Not `amd.dump_mir`: Triton 3.9 generates other code while it dumps.
    | {"amd.dump_amdgcn", "amd.libhip_path", "nvidia.cuobjdump", "nvidia.dump_nvptx"}
    | {"nvidia.dump_ptxas_log", "nvidia.libcuda_path", "nvidia.nvdisasm"}
    | {"compilation.allow_non_constexpr_globals", "compilation.always_compile"}
    | {"compilation.dump_ir", "compilation.front_end_debugging", "compilation.listener"}
    | {"compilation.store_binary_only", "runtime.interpret", "runtime.jit_cache_hook"}
    | {"runtime.jit_post_compile_hook"}
)
"""Knobs that change no code, and groups of such knobs."""

UNREADABLE = f"unreadable {PROCESS}"
"""Value of a setting that no text stands for: equal to no other process's."""


def code_generation_variables() -> dict[str, str]:
    """Return the environment variables that Triton makes part of a binary's key."""
    from triton._C.libtriton import get_cache_invalidating_env_vars

    return {name: str(value) for name, value in get_cache_invalidating_env_vars().items()}


def compiler_settings() -> dict[str, str]:
    """Return the settings that change the generated code and differ from their defaults, by name.

    They are Triton's knobs, by the name of their variable if they have one, and the variables that
    its compiler reads by itself.
    """
    from triton import knobs

    settings: dict[str, str] = {}
    read_by_knobs = set()
    for group_name, group in vars(knobs).items():
        if not isinstance(group, knobs.base_knobs):
            continue
        for name, knob in _knobs(group):
            variable = getattr(knob, "key", "")
            read_by_knobs.add(variable)
            if group_name in _NEUTRAL or f"{group_name}.{name}" in _NEUTRAL:
                continue
            # To read the knob of a tool would run it, for its version.
            if variable and variable not in os.environ and name not in vars(group):
                continue
            value = getattr(group, name)
            # Without a variable, it was read from one when Triton was imported, or is a hook.
            defaults = (getattr(knob, "default", None),) if variable else (None, False, "")
            if value not in defaults:
                settings[variable or f"{group_name}.{name}"] = _text(name, value)
    for name, value in code_generation_variables().items():
        if name not in read_by_knobs and value not in ("", "false"):  # off by default
            settings[name] = _text(name, value)
    return dict(sorted(settings.items()))


def _knobs(group: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names in a group of knobs, each with what its class says of it."""
    of_class = vars(type(group))
    for name in of_class.keys() | vars(group).keys():
        member = of_class.get(name)
        is_method = callable(member) or isinstance(member, (property, classmethod))
        if not (name.startswith("_") or is_method):
            yield name, member


def _text(name: str, value: Any) -> str:
    """Return what stands for a setting's value: of a file, its content."""
    if name == "override":  # a folder's files replace what is compiled
        return UNREADABLE
    if isinstance(value, bool):
        return str(value).lower()
    text = value if isinstance(value, str) else getattr(value, "path", None)
    if text is None:  # what a hook does is not in its name
        return str(value) if isinstance(value, int) else UNREADABLE
    path = Path(text)
    if not (os.sep in text and path.exists()):
        return as_text(text) or UNREADABLE
    return UNREADABLE if path.is_dir() else f"{path.name} {_file_digest(text)}"


@cache
def _file_digest(path: str) -> str:
    with suppress(OSError):
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:24]
    return ""


# The first compilation of a process needs Triton's digest of its own files, and so does the first
# look into Triton's cache of binaries: hundreds of megabytes are read, which takes some 0.4 s.
# Before that, a program imports its kernels and asks for its device, and Triton may have to build
# the module that it does that with; a thread computes the digest meanwhile.

GPU_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Devices of NVIDIA's driver, of AMD's, and of both under Windows' subsystem for Linux."""

_begun: list[Thread | None] = []

_PATIENCE = 30.0
"""Longest time in seconds that a launch waits for the digest; then Triton computes its own."""


def triton_key() -> str:
    """Return Triton's version and digest of its own files, which every binary's key begins with."""
    from triton.runtime.cache import triton_key as key

    return str(key())


def shows_gpu() -> bool:
    """Return whether a file shows a GPU: to ask the driver would break programs that fork later."""
    return any(os.path.exists(path) for path in GPU_FILES)


def begin_digest(then: Callable[[], object] | None = None) -> None:
    """Have a thread compute the digest, which Triton keeps, and call `then`; once in a process."""

    def compute() -> None:
        with suppress(Exception):  # Triton meets the same error and reports it.
            triton_key()
            with uninterrupted():  # a child that is forked meanwhile could import nothing more
                import_module("triton.experimental.gluon.nvidia.hopper")  # as a first launch does
                if then:
                    then()

    if not _begun:
        _begun.append(start_thread(compute, "dejavu-cache digest"))


def await_digest() -> None:
    """Wait for a digest that was begun; before it is there, Triton would compute another."""
    for thread in filter(None, _begun):
        thread.join(_PATIENCE)
