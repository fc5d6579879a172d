"""Packages that only some commands need, and the extras that install them."""

from __future__ import annotations

from importlib import import_module

__all__ = ["extra_of", "require_triton"]

_EXTRAS = {
    "numpy": "sweep",
    "opentelemetry": "otel",
    "optuna": "sweep",
    "ray": "ray",
    "sklearn": "sweep",
    "torch": "gpu",
    "triton": "gpu",
}


def extra_of(package: str) -> str:
    """Return the extra that installs a package."""
    return _EXTRAS.get(package, "server")


def require_triton() -> None:
    """Raise here rather than in a child process if Triton is missing or too old."""
    import_module("dejavu_cache.triton_internals.versions")
