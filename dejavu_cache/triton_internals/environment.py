"""The environment of this process: everything but the scenario that a timing depends on."""

from __future__ import annotations

import math
import os
import platform
import re
import sys
from functools import cache
from typing import Any

from ..errors import UnknownDeviceError
from ..model.scenario import Device, Environment
from .compiler_settings import compiler_settings

__all__ = [
    "INTERPRETER",
    "INTERPRETER_INDEX",
    "backend_for",
    "backend_hash",
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


def current_target() -> Any:
    """Return the current device's `GPUTarget`: backend (`cuda` or `hip`) and architecture."""
    from triton.runtime import driver

    return driver.active.get_current_target()


def backend_for(target: Any) -> Any:
    """Return Triton's compiler backend for a `GPUTarget`."""
    from triton.compiler.compiler import make_backend

    return make_backend(target)


def backend_hash(target: Any) -> str:
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


def _gpu(device: int, target: Any) -> Device:
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
