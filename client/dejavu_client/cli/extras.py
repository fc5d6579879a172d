"""Packages that only some commands need, and the extras that install them."""

from __future__ import annotations

from importlib.util import find_spec

__all__ = ["extra_of", "require_package"]

_EXTRAS = {
    "jinja2": "sweep",
    "numpy": "sweep",
    "opentelemetry": "otel",
    "optuna": "sweep",
    "ray": "ray",
    "sklearn": "sweep",
    "torch": "gpu",
    "triton": "gpu",
    "zstandard": "bundle",
}


def extra_of(package: str) -> str:
    """Return the extra that installs a package."""
    return _EXTRAS.get(package, "server")


def require_package(name: str) -> None:
    """Raise `ModuleNotFoundError` here rather than in a child process, as an import would."""
    if find_spec(name) is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
