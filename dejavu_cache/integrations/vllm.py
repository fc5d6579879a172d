"""vLLM's plug-in: every process of an engine caches its kernels."""

from __future__ import annotations

from ..installation.autotune_replacement import install
from ..settings import current_settings

__all__ = ["register"]


def register() -> None:
    """Install the cache where `DEJAVU_CACHE_INSTALL=1` says so, as under `dejavu-cache run`; vLLM calls this."""
    if current_settings().install:
        install()
