"""The environment of this process: everything but the scenario that a timing depends on.

It is the device, Triton's version and code generator, and the settings that change what Triton
generates. Triton is asked for all its knobs: one is left out if it is known to change no code, or
has its default value. Any other counts, so an unknown setting makes an environment of its own.

Triton is imported when it is asked, so that commands run where it is not installed.
"""

from __future__ import annotations

import hashlib
import inspect
import math
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from ..errors import UnknownDeviceError
from ..model.scenario import Device, Environment, as_text
from .identity import PROCESS

if TYPE_CHECKING:
    from triton.backends.compiler import BaseBackend, GPUTarget

__all__ = [
    "INTERPRETER",
    "INTERPRETER_INDEX",
    "await_digest",
    "backend_for",
    "backend_hash",
    "begin_digest",
    "begin_digest_beside_imports",
    "code_generation_variables",
    "compiler_settings",
    "current_device",
    "current_environment",
    "current_target",
    "describe_codegen",
    "has_device",
    "is_capturing_graph",
    "is_interpreting",
    "nominal_memory",
    "supported_float8",
    "toolchain_on",
    "triton_key",
    "triton_version",
    "unreadable_settings",
]

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
    if is_interpreting():
        return True
    try:
        current_device()
    except RuntimeError:
        return False
    return True


def current_device() -> int:
    """Return the index of the device that a compiled kernel would be launched on now."""
    from triton.runtime import driver

    index: int = driver.active.get_current_device()
    return index


def current_target() -> GPUTarget:
    """Return the current device's `GPUTarget`: backend (`cuda` or `hip`) and architecture."""
    from triton.runtime import driver

    return driver.active.get_current_target()


def backend_for(target: GPUTarget) -> BaseBackend:
    """Return Triton's compiler backend for a `GPUTarget`."""
    from triton.compiler.compiler import make_backend

    return make_backend(target)


def backend_hash(target: GPUTarget) -> str:
    """Return the part of a binary's key that stands for the compiler's version.

    Args:
        target: Triton's `GPUTarget`.
    """
    return str(backend_for(target).hash())


def supported_float8() -> tuple[str, ...]:
    """Return Triton's names of the float8 types that kernels can use on the current device."""
    return tuple(backend_for(current_target()).parse_options({}).supported_fp8_dtypes)


def current_environment(device: int) -> Environment:
    """Return the environment of one of this process's devices.

    Args:
        device: an index, as `current_device` returns it, or `INTERPRETER_INDEX`.
    """
    environment = toolchain_on(device)
    if device == INTERPRETER_INDEX:
        return environment
    # A program may set a knob at any time.
    return environment.model_copy(update={"variables": compiler_settings()})


@cache
def toolchain_on(device: int) -> Environment:
    """Return a device's environment without Triton's settings, which a program may change.

    Raises:
        Exception: the device is not known.
    """
    import triton

    if device == INTERPRETER_INDEX:
        return Environment(
            device=_interpreter(),
            triton=triton.__version__,
            codegen=f"Python {platform.python_version()}",
        )
    target = current_target()
    return Environment(
        device=_gpu(device, target),
        triton=triton.__version__,
        codegen=describe_codegen(backend_hash(target)),
    )


def _interpreter() -> Device:
    return Device(
        name=INTERPRETER, arch=platform.machine(), units=os.cpu_count() or 0, memory_gib=0
    )


def _gpu(device: int, target: GPUTarget) -> Device:
    import torch

    if target.backend not in ("cuda", "hip"):
        raise UnknownDeviceError(
            f"devices of Triton's backend {target.backend!r} have no place in records yet"
        )
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
    """Return `ptxas 12.9.86` if a backend's hash holds the release, else the hash, shortened."""
    release = re.search(r"V(\d+(?:\.\d+)+)", backend_hash)
    return f"ptxas {release.group(1)}" if release else " ".join(backend_hash.split())[:200]


def is_capturing_graph() -> bool:
    """Return whether the current stream is being captured into a CUDA or HIP graph."""
    torch = sys.modules.get("torch")
    return bool(torch and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


def triton_version() -> str | None:
    """Return the version of the distribution that contains the package `triton`, or None.

    PyTorch builds for ROCm and XPU have distributions of their own, such as `pytorch-triton-rocm`.
    """
    try:
        return version("triton")
    except PackageNotFoundError:
        names = packages_distributions().get("triton")
    return version(names[0]) if names else None


_NEUTRAL_GROUPS = frozenset({"autotuning", "build", "proton", "redis"})
_NEUTRAL_KNOBS = {
    # Not `dump_mir`: Triton 3.9 generates other code while it dumps.
    "amd": {"dump_amdgcn", "libhip_path"},
    "cache": {"dir", "dump_dir", "home_dir", "manager_class", "override_dir"}
    | {"remote_manager_class"},
    "compilation": {"allow_non_constexpr_globals", "always_compile", "dump_ir"}
    | {"front_end_debugging", "listener", "store_binary_only"},
    "nvidia": {"cuobjdump", "dump_nvptx", "dump_ptxas_log", "libcuda_path", "nvdisasm"},
    "runtime": {"interpret", "jit_cache_hook", "jit_post_compile_hook", "kernel_load_end_hook"}
    | {"kernel_load_start_hook", "kernel_unload_hook", "launch_enter_hook", "launch_exit_hook"},
}
_TOOLS = ("ptxas", "ptxas_blackwell")

# Of the variables that are no knobs: those that print, time or write files beside the compilation,
# and those that Triton has read into a knob when it was imported.
_NEUTRAL_VARIABLES = frozenset(
    {"AMDGCN_ENABLE_DUMP", "LLVM_ENABLE_TIMING", "LLVM_IR_ENABLE_DUMP", "MLIR_DUMP_PATH"}
    | {"MLIR_ENABLE_DIAGNOSTICS", "MLIR_ENABLE_DUMP", "MLIR_ENABLE_REMARK", "MLIR_ENABLE_TIMING"}
    | {"NVPTX_ENABLE_DUMP", "TRITON_DEBUG", "TRITON_ENABLE_LLVM_DEBUG"}
    | {"TRITON_ENABLE_PYTHON_STACKTRACE", "TRITON_INSTRUMENTATION_MODE", "TRITON_INTERPRET"}
    | {"TRITON_LLVM_DEBUG_ONLY", "TRITON_PARTITION_SCHEDULING_DUMP_DATA_ONLY"}
    | {"TRITON_PARTITION_SCHEDULING_DUMP_LOOP_ONLY", "TRITON_PARTITION_SCHEDULING_ENABLE_DUMP_DOT"}
    | {"TRITON_REPRODUCER_PATH", "TRITON_BACKENDS_IN_TREE", "TRITON_PLUGIN_VERSION_CHECK"}
)
_COMPILER_PREFIXES = ("AMDGCN_", "MLIR_", "NVPTX_", "PTXAS_", "TRITON_")
# NVIDIA's inference server is called Triton too.
_OTHER_PREFIXES = ("TRITON_SERVER_", "TRITON_CORE_", "TRITON_BACKEND_", "TRITON_VERSION")

_UNREADABLE = f"unreadable {PROCESS}"
"""Value of a setting that no text stands for: equal to no other process's."""


def code_generation_variables() -> dict[str, str]:
    """Return the environment variables that Triton makes part of a binary's key."""
    from triton._C.libtriton import get_cache_invalidating_env_vars

    return {name: str(value) for name, value in get_cache_invalidating_env_vars().items()}


def compiler_settings() -> dict[str, str]:
    """Return the settings that change the generated code and differ from their defaults, by name.

    A knob that an environment variable sets goes by the variable's name.
    """
    settings: dict[str, str] = {}
    handled = set(_NEUTRAL_VARIABLES)
    for group_name, group in _groups():
        for name, descriptor in _knobs(group):
            handled.add(getattr(descriptor, "key", name))
            is_neutral = group_name in _NEUTRAL_GROUPS or name in _NEUTRAL_KNOBS.get(group_name, ())
            if is_neutral or _is_unset_tool(group, name, descriptor):
                continue
            value = getattr(group, name)
            if not _is_default(name, value, descriptor):
                shown = getattr(descriptor, "key", f"{group_name}.{name}")
                settings[shown] = _text(name, value)
    invalidating = code_generation_variables()
    for name in sorted({*invalidating, *_compiler_variables()} - handled):
        value = invalidating.get(name, os.environ.get(name, ""))
        if value not in ("", "false"):  # the compiler's switches are off by default
            settings[name] = _text(name, value)
    return dict(sorted(settings.items()))


def unreadable_settings(settings: Mapping[str, str]) -> list[str]:
    """Return the names of the settings, as `compiler_settings` returns them, without a text."""
    return [name for name, value in settings.items() if value == _UNREADABLE]


def _groups() -> Iterator[tuple[str, Any]]:
    from triton import knobs

    for name, value in sorted(vars(knobs).items()):
        if isinstance(value, knobs.base_knobs):
            yield name, value


def _knobs(group: Any) -> Iterator[tuple[str, Any]]:
    """Return a group's knobs with their descriptors, or None for a plain attribute."""
    from triton import knobs

    kind: Any = type(group)
    members = _class_members(kind)
    for name in sorted({*members, *vars(group)}):
        member = members.get(name)
        if isinstance(member, knobs.env_base):
            yield name, member
        elif not (name.startswith("_") or _is_method(member)):
            yield name, None


@cache
def _class_members(kind: Any) -> dict[str, Any]:
    """Return what a group's class has beyond other groups; programs set knobs on the group."""
    from triton import knobs

    inherited = set(dir(knobs.base_knobs))
    return {name: inspect.getattr_static(kind, name) for name in dir(kind) if name not in inherited}


def _is_method(member: Any) -> bool:
    return isinstance(member, (property, staticmethod, classmethod)) or (
        type(member).__name__ == "function"
    )


def _is_unset_tool(group: Any, name: str, descriptor: Any) -> bool:
    """Return whether a tool is Triton's own: to read the knob would run it for its version."""
    is_own = name in _TOOLS and name not in vars(group) and descriptor is not None
    return is_own and descriptor.key not in os.environ


def _is_default(name: str, value: Any, descriptor: Any) -> bool:
    if descriptor is None:  # read from a variable when Triton was imported, or a hook
        return value is None or value is False or value == ""
    default = _default_of(descriptor)
    if name in _TOOLS:
        return value.path == default or _file_digest(value.path) == _file_digest(default)
    return bool(value == default)


def _default_of(descriptor: Any) -> Any:
    """Return a knob's value where no variable sets it; that of a tool is its path."""
    for name in ("default_path", "default_factory", "default"):
        if hasattr(descriptor, name):
            default = getattr(descriptor, name)
            return default() if callable(default) else default
    return None


def _text(name: str, value: Any) -> str:
    if name == "override":  # a folder's files replace what is compiled
        return _UNREADABLE
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(getattr(value, "path", value))
    if isinstance(value, (str, int)) or hasattr(value, "path"):
        path = Path(text)
        if not (os.sep in text and path.exists()):
            return as_text(text) or _UNREADABLE
        return _UNREADABLE if path.is_dir() else f"{path.name} {_file_digest(text)}"
    if isinstance(value, (float, tuple, list, type(None))):
        return as_text(repr(value))
    return _UNREADABLE  # a hook: what it does is not in its name


@cache
def _file_digest(path: str) -> str:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:24]
    except OSError:
        return ""


def _compiler_variables() -> list[str]:
    return [
        name
        for name in os.environ
        if name.startswith(_COMPILER_PREFIXES) and not name.startswith(_OTHER_PREFIXES)
    ]


# The first compilation of a process needs Triton's digest of its own files, and so does the first
# look into Triton's cache of binaries: hundreds of megabytes are read, which takes some 0.4 s.
# Before that, a program imports its kernels and asks for its device, and Triton may have to build
# the module that it does that with; a thread computes the digest meanwhile.

GPU_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Devices of NVIDIA's driver, of AMD's, and of both under Windows' subsystem for Linux."""

_begun: list[Thread] = []


def triton_key() -> str:
    """Return Triton's version and digest of its own files, which every binary's key begins with."""
    from triton.runtime.cache import triton_key as key

    return str(key())


def begin_digest() -> None:
    """Have a thread compute the digest, once in a process; Triton keeps it."""
    if _begun:
        return
    with suppress(RuntimeError):  # a process may have no thread left, or be at its end
        thread = Thread(target=_compute_digest, name="dejavu-cache digest", daemon=True)
        thread.start()
        _begun.append(thread)


def begin_digest_beside_imports() -> None:
    """Begin before any launch, if a file shows that there is a GPU.

    Nothing asks the driver: that would initialise it, and break programs that fork later.
    """
    if any(os.path.exists(path) for path in GPU_FILES):
        begin_digest()


def await_digest() -> None:
    """Wait for a digest that was begun; before it is there, Triton would compute another."""
    if not sys.is_finalizing():  # a thread that the interpreter has stopped would never end
        for thread in _begun:
            thread.join()


def _compute_digest() -> None:
    with suppress(Exception):  # Triton meets the same error and reports it.
        triton_key()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begun.clear)  # its threads are the parent's
