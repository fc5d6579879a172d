"""Call functions when a module is imported, without importing it."""

import importlib.machinery
import sys
from collections.abc import Callable
from typing import Any

_waiting: dict[str, list[Callable[[Any], None]]] = {}


def after_import(module: str, function: Callable[[Any], None]) -> None:
    """Call a function with a module once that is imported by its full name, or now if it is."""
    if module in sys.modules:
        function(sys.modules[module])
        return
    functions = _waiting.setdefault(module, [])
    if function not in functions:
        functions.append(function)
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)


class _Finder:
    """Finder that lets the other finders find a module, and calls the functions afterwards."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> Any:
        if not _waiting.get(name):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                load(module)
                for function in _waiting.pop(name, []):
                    function(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
