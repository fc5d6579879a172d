"""Triton's installed version, whatever its distribution is called; Triton is not imported."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, packages_distributions, version

__all__ = ["triton_version"]


def triton_version() -> str | None:
    """Return the version of the distribution that contains the package `triton`, or None.

    PyTorch builds for ROCm and XPU have distributions of their own, such as `pytorch-triton-rocm`.
    """
    try:
        return version("triton")
    except PackageNotFoundError:
        names = packages_distributions().get("triton")
    return version(names[0]) if names else None
