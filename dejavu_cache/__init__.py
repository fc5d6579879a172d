"""Persistent, shared autotuning for Triton.

Importing this package loads neither torch nor triton nor pydantic: each public name is imported on
its first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import errors as errors

if TYPE_CHECKING:
    from .errors import DejavuError as DejavuError
    from .errors import NoValidConfigError as NoValidConfigError
    from .errors import ScenarioNotTuned as ScenarioNotTuned
    from .errors import StoreError as StoreError
    from .installation.autotune_replacement import install as install
    from .installation.autotune_replacement import uninstall as uninstall
    from .model.buckets import Edges as Edges
    from .model.buckets import Exact as Exact
    from .model.buckets import Multiple as Multiple
    from .model.buckets import Pow2 as Pow2
    from .runtime.autotuner import CachedAutotuner as CachedAutotuner
    from .runtime.autotuner import cached_autotune as cached_autotune
    from .runtime.request import Resolution as Resolution
    from .runtime.service_phase import serving as serving
    from .runtime.service_phase import warmup as warmup
    from .settings import Mode as Mode
    from .settings import Settings as Settings
    from .stores import open_store as open_store
    from .tuning.result_check import CheckOptions as CheckOptions
    from .tuning.search import ConfigSpace as ConfigSpace
    from .tuning.search import config_space as config_space

_PUBLIC = {
    "errors": ("DejavuError", "NoValidConfigError", "ScenarioNotTuned", "StoreError"),
    "installation.autotune_replacement": ("install", "uninstall"),
    "model.buckets": ("Edges", "Exact", "Multiple", "Pow2"),
    "runtime.autotuner": ("CachedAutotuner", "cached_autotune"),
    "runtime.request": ("Resolution",),
    "runtime.service_phase": ("serving", "warmup"),
    "settings": ("Mode", "Settings"),
    "stores": ("open_store",),
    "tuning.result_check": ("CheckOptions",),
    "tuning.search": ("ConfigSpace", "config_space"),
}
"""The public names of each module."""

_MODULES = {name: module for module, names in _PUBLIC.items() for name in names}

__version__ = "0.1.0"
__all__ = ["__version__", "errors"]
__all__ += list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
    except ModuleNotFoundError as error:
        if error.name in ("torch", "triton"):
            error.msg = f"{name} needs {error.name}: pip install 'dejavu-cache[gpu]'"
        raise
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
