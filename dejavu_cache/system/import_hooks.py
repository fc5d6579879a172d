"""Call functions when a module is imported, without importing it.

A function's error is a warning: the module is another package's, and is used as it is.
"""

import importlib.machinery
import sys
from collections.abc import Callable
from typing import Any

from .background_threads import dropping_errors

_waiting: dict[str, dict[Callable[[Any], None], None]] = {}


def after_import(module: str, function: Callable[[Any], None]) -> None:
    """Call a function with a module once that is imported by its full name, or now if it is."""
    _waiting.setdefault(module, {})[function] = None
    if module in sys.modules:
        _call_waiting(module, sys.modules[module])
    elif _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)


def _call_waiting(name: str, module: Any) -> None:
    for function in _waiting.pop(name, ()):
        with dropping_errors(f"{name} is used as it is, for {function.__name__}", about=name):
            function(module)


class _Finder:
    """Finder that lets the other finders find a module, and calls the functions afterwards."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in _waiting:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                load(module)
                _call_waiting(name, module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
