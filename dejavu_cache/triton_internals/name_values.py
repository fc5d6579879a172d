"""What the names in a function stand for: globals, what it closes over, and imports inside it."""

from __future__ import annotations

import functools
import importlib.util
import sys
import types
from collections import ChainMap
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ..errors import UnreadableKernelError
from .syntax import FunctionSyntax
from .syntax_names import Chain, Import
from .triton_objects import qualified_name

__all__ = [
    "MISSING",
    "NamedCallee",
    "Names",
    "has_fixed_attributes",
    "imported_values",
    "is_standard",
    "resolve",
    "values_of_names",
]

Names = Mapping[str, Any]

MISSING = object()
"""Stands for a name without a value."""

_FUNCTIONS = (types.FunctionType, functools._lru_cache_wrapper)


def has_fixed_attributes(value: Any) -> bool:
    """Return whether a value is a module, class or function; an instance may compute attributes."""
    return isinstance(value, (types.ModuleType, type, *_FUNCTIONS))


def resolve(names: Names, chain: Chain) -> Any:
    """Return the value of a dotted name, or `MISSING`."""
    value = names.get(chain[0], MISSING)
    for name in chain[1:]:
        if not has_fixed_attributes(value):
            return MISSING
        if isinstance(value, _FUNCTIONS):
            value = vars(value).get(name, MISSING)
        else:
            value = getattr(value, name, MISSING)
    return value


def values_of_names(function: Callable[..., Any]) -> Names:
    """Return the values of a function's globals and of what it closes over, by name."""
    return {**function.__globals__, **_closure_values(function)}


def _closure_values(function: Callable[..., Any]) -> dict[str, Any]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    return {name: cell.cell_contents for name, cell in cells if not _is_empty(cell)}


def _is_empty(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - reading an empty cell raises
    except ValueError:
        return True
    return False


class NamedCallee(NamedTuple):
    """A jit function that another function calls by a name.

    Attributes:
        caller: the function that calls it.
        chain: the dotted name.
        callee: the jit function of that name when the caller was hashed.
    """

    caller: Callable[..., Any]
    chain: Chain
    callee: Any

    @property
    def successor(self) -> Any:
        """What the name stands for by now: the callee itself, something else, or `MISSING`."""
        names = ChainMap(_closure_values(self.caller), self.caller.__globals__)
        return resolve(names, self.chain)

    def __str__(self) -> str:
        """Return the dotted name."""
        return ".".join(self.chain)


def is_standard(value: Any) -> bool:
    """Return whether a value is a module of Python's or Triton's own."""
    top = getattr(value, "__name__", "").partition(".")[0]
    return isinstance(value, types.ModuleType) and (
        top == "triton" or top in sys.stdlib_module_names
    )


def imported_values(function: Callable[..., Any], syntax: FunctionSyntax) -> dict[str, Any]:
    """Return what the imports inside a function bind, as far as it is imported already.

    Raises:
        UnreadableKernelError: a module is not imported yet, or a name has several meanings.
    """
    values: dict[str, Any] = {}
    for statement in sorted(syntax.imports):
        name = statement[0]
        value = _imported(function, statement)
        if value is MISSING:
            raise UnreadableKernelError(
                f"{qualified_name(function)} imports {_described(statement)}, which is not "
                "imported yet: import it at the module's top"
            )
        is_other = function.__globals__.get(name, value) is not value
        is_bound = name in syntax.local_names or name in function.__code__.co_freevars
        if is_other or is_bound or values.setdefault(name, value) is not value:
            raise UnreadableKernelError(
                f"{qualified_name(function)} imports {name} and binds it otherwise too: "
                "import it at the module's top"
            )
    return values


def _imported(function: Callable[..., Any], statement: Import) -> Any:
    _, module, attribute, level = statement
    if level:
        package = function.__globals__.get("__package__") or ""
        try:
            module = importlib.util.resolve_name("." * level + module, package)
        except ImportError:
            return MISSING
    if module not in sys.modules:
        return MISSING
    if not attribute:
        return sys.modules.get(module.partition(".")[0], MISSING)
    if attribute == "as":
        return sys.modules[module]
    found = getattr(sys.modules[module], attribute, MISSING)
    return sys.modules.get(f"{module}.{attribute}", MISSING) if found is MISSING else found


def _described(statement: Import) -> str:
    _, module, attribute, level = statement
    path = "." * level + module
    return path if attribute in ("", "as") else f"{attribute} from {path}"
