"""The environment of this process: what a timing depends on besides the scenario."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

from ..model.scenario import Device, Environment

__all__ = [
    "INTERPRETER",
    "INTERPRETER_INDEX",
    "capturing",
    "codegen",
    "current_device",
    "current_environment",
    "interpreting",
]

INTERPRETER = "Triton interpreter"
"""The device's name where kernels are interpreted on the CPU."""

INTERPRETER_INDEX = -1
"""The interpreter's place among the devices."""


def interpreting() -> bool:
    """Whether Triton runs kernels in its interpreter."""
    from triton import knobs

    return bool(knobs.runtime.interpret)


def current_device() -> int:
    """The index of the device that a compiled kernel would be launched on now."""
    from triton.runtime import driver

    index: int = driver.active.get_current_device()
    return index


@cache
def current_environment(device: int) -> Environment:
    """The environment of one of this process's devices.

    Args:
        device: as `current_device` gives it, or `INTERPRETER_INDEX`.
    """
    import triton

    if device == INTERPRETER_INDEX:
        return Environment(
            device=_interpreter(),
            triton=triton.__version__,
            codegen=f"Python {platform.python_version()}",
        )
    from triton.compiler.compiler import make_backend
    from triton.runtime import driver

    target = driver.active.get_current_target()
    return Environment(
        device=_gpu(device, target),
        triton=triton.__version__,
        codegen=codegen(make_backend(target).hash()),
        variables=_variables(),
    )


def _interpreter() -> Device:
    return Device(
        name=INTERPRETER, arch=platform.machine(), units=os.cpu_count() or 0, memory_gib=0
    )


def _gpu(device: int, target: Any) -> Device:
    import torch

    properties = torch.cuda.get_device_properties(device)
    arch = f"sm_{target.arch}" if target.backend == "cuda" else str(target.arch)
    return Device(
        name=properties.name.strip(),
        arch=arch,
        units=properties.multi_processor_count,
        # Total memory varies by some MiB with the driver and with error correction; whole GiB tell models apart.
        memory_gib=round(properties.total_memory / 2**30),
    )


def _variables() -> Mapping[str, str]:
    from triton._C.libtriton import get_cache_invalidating_env_vars

    return {name: str(value) for name, value in get_cache_invalidating_env_vars().items()}


def codegen(backend_hash: str) -> str:
    """`ptxas 12.9.86` where the backend's hash tells it, else the hash itself, shortened."""
    release = re.search(r"V(\d+(?:\.\d+)+)", backend_hash)
    return f"ptxas {release.group(1)}" if release else " ".join(backend_hash.split())[:200]


def capturing() -> bool:
    """Whether the current stream is being captured into a CUDA or HIP graph."""
    torch = sys.modules.get("torch")
    return bool(torch and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())
