"""Persistent, shared autotuning for Triton.

Importing this loads neither torch nor triton, nor anything else that is slow: names are fetched on use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import DejavuError as DejavuError
    from .errors import NoValidConfigError as NoValidConfigError
    from .errors import ScenarioNotTuned as ScenarioNotTuned
    from .errors import StoreError as StoreError
    from .installation.autotune_replacement import install as install
    from .model.buckets import Edges as Edges
    from .model.buckets import Exact as Exact
    from .model.buckets import Multiple as Multiple
    from .model.buckets import Pow2 as Pow2
    from .model.resolution import Resolution as Resolution
    from .runtime.autotuner import CachedAutotuner as CachedAutotuner
    from .runtime.autotuner import cached_autotune as cached_autotune
    from .settings import Mode as Mode
    from .settings import Settings as Settings
    from .stores import open_store as open_store
    from .tuning.config_space import ConfigSpace as ConfigSpace
    from .tuning.config_space import config_space as config_space

_HOMES = {
    "CachedAutotuner": "runtime.autotuner",
    "ConfigSpace": "tuning.config_space",
    "DejavuError": "errors",
    "Edges": "model.buckets",
    "Exact": "model.buckets",
    "Mode": "settings",
    "Multiple": "model.buckets",
    "NoValidConfigError": "errors",
    "Pow2": "model.buckets",
    "Resolution": "model.resolution",
    "ScenarioNotTuned": "errors",
    "Settings": "settings",
    "StoreError": "errors",
    "cached_autotune": "runtime.autotuner",
    "config_space": "tuning.config_space",
    "install": "installation.autotune_replacement",
    "open_store": "stores",
}

__version__ = "0.1.0"
__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
