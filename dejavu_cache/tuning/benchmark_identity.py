"""Tell benchmark functions apart: by name, or else by code and bound values."""

from __future__ import annotations

import functools
import hashlib
import inspect
import types
import weakref
from collections.abc import Iterator
from typing import Any

from ..triton_internals.identity import syntax_of, value_text
from ..triton_internals.triton_objects import module_name

__all__ = ["benchmark_name"]


def benchmark_name(do_bench: Any) -> str:
    """Return a name that tells benchmark functions apart, the same in every process.

    A function of a module goes by its name. Anything else, of which there may be several of one
    name (a partial, a lambda, a closure, a bound method, an object), goes by its code and the
    values that it was bound to when it was first seen: it may count its calls.

    Raises:
        TypeError: it is bound to a value that has no encoding.
        OSError: its source text is not available.
    """
    function = do_bench if hasattr(do_bench, "__qualname__") else type(do_bench)
    name = f"{module_name(function)}.{function.__qualname__}"
    if inspect.isfunction(do_bench) and do_bench.__qualname__.isidentifier():
        return name
    owner = getattr(do_bench, "__self__", do_bench)
    try:
        seen = _seen.setdefault(owner, {})
    except TypeError:  # it has no hash, or nothing can refer to it weakly
        seen = {}
    if name not in seen:
        digest = hashlib.sha256("\0".join(_tokens(do_bench, ())).encode()).hexdigest()
        seen[name] = f"{name} {digest[:16]}"
    return seen[name]


_seen: weakref.WeakKeyDictionary[Any, dict[str, str]] = weakref.WeakKeyDictionary()


def _tokens(value: Any, outer: tuple[int, ...]) -> Iterator[str]:
    """Write a value by its own code and what it is bound to, but not the globals that it reads."""
    text = value_text(value)
    if text is not None:
        yield text
        return
    if id(value) in outer:
        yield f"outer {outer.index(id(value))}"
        return
    yield f"{type(value).__qualname__} {{"
    if inspect.isfunction(value):
        yield syntax_of(value)
    elif isinstance(value, (type, types.ModuleType, types.BuiltinFunctionType)):
        yield f"{getattr(value, '__module__', '')}.{value.__name__}"
    elif type(value).__module__ != "builtins" and callable(value) and not _binds(value):
        yield from _tokens(type(value).__call__, (*outer, id(value)))
    for part in _bound_values(value):
        yield from _tokens(part, (*outer, id(value)))
    yield "}"


def _binds(value: Any) -> bool:
    return isinstance(value, (functools.partial, types.MethodType))


def _bound_values(value: Any) -> list[Any]:
    if inspect.isfunction(value):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        return [*cells, value.__defaults__, value.__kwdefaults__]
    if isinstance(value, (type, types.ModuleType, types.BuiltinFunctionType)):
        return []
    if isinstance(value, functools.partial):
        return [value.func, list(value.args), value.keywords]
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if type(value) in (tuple, list):
        return list(value)
    if type(value) is dict:
        return [part for item in value.items() for part in item]
    if type(value).__module__ != "builtins" and hasattr(value, "__dict__"):
        return [f"{module_name(type(value))}.{type(value).__qualname__}", dict(vars(value))]
    raise TypeError(f"it is bound to a {type(value).__qualname__}")
