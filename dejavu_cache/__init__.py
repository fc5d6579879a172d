"""Persistent, shared autotuning for Triton.

Importing this loads neither torch nor triton, nor anything else that is slow: names are fetched on use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .autotune import CachedAutotuner as CachedAutotuner
    from .autotune import cached_autotune as cached_autotune
    from .buckets import Edges as Edges
    from .buckets import Exact as Exact
    from .buckets import Multiple as Multiple
    from .buckets import Pow2 as Pow2
    from .errors import DejavuError as DejavuError
    from .errors import NoValidConfigError as NoValidConfigError
    from .errors import ScenarioNotTuned as ScenarioNotTuned
    from .errors import StoreError as StoreError
    from .installation import install as install
    from .resolution import Resolution as Resolution
    from .settings import Mode as Mode
    from .settings import Settings as Settings
    from .spaces import ConfigSpace as ConfigSpace
    from .spaces import config_space as config_space
    from .stores import open_store as open_store

_HOMES = {
    "CachedAutotuner": "autotune",
    "ConfigSpace": "spaces",
    "DejavuError": "errors",
    "Edges": "buckets",
    "Exact": "buckets",
    "Mode": "settings",
    "Multiple": "buckets",
    "NoValidConfigError": "errors",
    "Pow2": "buckets",
    "Resolution": "resolution",
    "ScenarioNotTuned": "errors",
    "Settings": "settings",
    "StoreError": "errors",
    "cached_autotune": "autotune",
    "config_space": "spaces",
    "install": "installation",
    "open_store": "stores",
}

__version__ = "0.1.0"
__all__ = [*_HOMES, "__version__"]  # noqa: PLE0604 - names all


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
