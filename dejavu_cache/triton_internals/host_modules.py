"""Build the host modules by which Triton talks to a vendor's driver and launches kernels."""

from __future__ import annotations

from typing import Any

__all__ = ["build_driver_module", "build_launcher", "platform_key"]


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


def build_launcher(backend: str, compiled: Any) -> None:
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
