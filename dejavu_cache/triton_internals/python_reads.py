"""What a function that Python runs, such as a heuristic, reads besides its arguments.

Triton lets a jit function read little, and fails to compile what is not there. Python lets a
function read anything. Whatever of it a hash cannot stand for is refused, so that a value which
changes between two processes cannot hide behind an equal identity.
"""

from __future__ import annotations

import builtins
import functools
import importlib.util
import sys
import types
from collections import ChainMap
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, MutableSet
from typing import Any, NamedTuple

from ..errors import UnreadableKernelError
from .constants import library_of
from .pure_functions import (
    is_pure_builtin,
    is_pure_class,
    is_pure_function,
    is_pure_module,
    refuse_impure,
)
from .syntax import FunctionSyntax
from .syntax_names import ANY_ATTRIBUTE, Chain, Import
from .triton_objects import is_jit, is_triton_own, python_function, qualified_name, unwrap

__all__ = [
    "MISSING",
    "NamedCallee",
    "check_reads",
    "imported_values",
    "is_standard",
    "resolve",
    "values_of_names",
]

Names = Mapping[str, Any]

MISSING = object()
"""Stands for a name without a value."""

_MUTABLE = (MutableMapping, MutableSequence, MutableSet)
_WRAPPER = functools._lru_cache_wrapper


def resolve(names: Names, chain: Chain) -> Any:
    """Return the value of a dotted name, or `MISSING`."""
    value = names.get(chain[0], MISSING)
    for name in chain[1:]:
        # Only attributes of modules, classes and functions: an instance may compute its own.
        if isinstance(value, (types.FunctionType, _WRAPPER)):
            value = vars(value).get(name, MISSING)
        elif isinstance(value, (types.ModuleType, type)):
            value = getattr(value, name, MISSING)
        else:
            return MISSING
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
    def is_replaced(self) -> bool:
        """Whether the name stands for something else by now."""
        names = ChainMap(_closure_values(self.caller), self.caller.__globals__)
        return resolve(names, self.chain) is not self.callee

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


def check_reads(function: Callable[..., Any], syntax: FunctionSyntax, names: Names) -> None:
    """Refuse a Python function that reads what no hash of its code and constants stands for.

    Args:
        function: the function, which Python runs.
        syntax: what its text says.
        names: the values of its globals, of what it closes over, and of its imports.

    Raises:
        UnreadableKernelError: it reads something else, or changes what it reads.
    """
    hidden = syntax.local_names - syntax.read_first
    bound = syntax.local_names | syntax.bound_names
    # A name that is bound somewhere else in the function may be Python's own where it is read.
    inner = {name for name in bound - set(names) if not hasattr(builtins, name)}
    known = hidden | inner | (bound - syntax.read_first - set(names))
    for chain in sorted(syntax.bare_names | syntax.fetched_names):
        if chain[0] not in known:
            _check_name(function, names, chain)
    _check_changes(function, syntax, names, hidden)


def _check_name(function: Callable[..., Any], names: Names, chain: Chain) -> None:
    if chain[0] not in names:
        _check_builtin(function, chain[0])
        return
    value = names[chain[0]]
    for index, name in enumerate(chain[1:], 1):
        if not isinstance(value, (types.ModuleType, type, types.FunctionType, _WRAPPER)):
            return  # an object is read with all that it holds
        inner = resolve({"": value}, ("", name))
        if inner is MISSING:
            if not _is_known_without(value, name):
                raise UnreadableKernelError(
                    f"{qualified_name(function)} reads {'.'.join(chain[: index + 1])}, "
                    "which has no value that can be read"
                )
            return
        value = inner
    _check_value(".".join(chain), unwrap(value)[0])


def _check_builtin(function: Callable[..., Any], name: str) -> None:
    if not hasattr(builtins, name):
        raise UnreadableKernelError(
            f"{qualified_name(function)} reads {name}, which is not defined"
        )
    value = getattr(builtins, name)
    is_replaced = getattr(value, "__module__", "builtins") != "builtins"
    is_own_hash = name == "hash" and function.__name__ == "__hash__"
    if is_replaced or not (is_pure_builtin(name) or is_own_hash):
        raise UnreadableKernelError(
            f"{qualified_name(function)} calls {name}, which may read anything: name what it reads"
        )


def _is_known_without(value: Any, name: str) -> bool:
    """Return whether code that reads an attribute which is not there means the same everywhere."""
    if isinstance(value, types.ModuleType):
        if name == ANY_ATTRIBUTE:
            return is_standard(value) and is_pure_module(value)
        # The version of a library says what is missing.
        return is_standard(value) or value.__name__.partition(".")[0] in ("torch", "numpy")
    # A class is read as a whole, and Python's own attributes of a function are.
    return isinstance(value, type) or (name.startswith("__") and name.endswith("__"))


def _check_value(name: str, value: Any) -> None:
    if isinstance(value, types.ModuleType):
        refused = is_standard(value) and not is_pure_module(value)
    elif is_triton_own(value):
        owned = python_function(value) if is_jit(value) else value
        refused = not isinstance(owned, type) and not is_pure_function(owned)
    else:
        refused = isinstance(value, type) and bool(library_of(value)) and not is_pure_class(value)
    if refused:
        raise refuse_impure(name, value)


def _check_changes(
    function: Callable[..., Any], syntax: FunctionSyntax, names: Names, hidden: frozenset[str]
) -> None:
    """Refuse a function that keeps values: what it reads would depend on what ran before."""
    outer = set(function.__code__.co_freevars) | set(function.__globals__)
    kept: set[Chain] = {(name,) for name in syntax.declared_names & syntax.local_names & outer}
    kept |= {chain for chain in syntax.changed_names if chain[0] not in hidden}
    kept |= {
        chain
        for chain in syntax.mutated_names
        if chain[0] not in hidden and _is_container(names, chain)
    }
    changed = syntax.changed_names | syntax.mutated_names
    memos = {chain for chain in changed if chain[0] in _mutable_defaults(function)}
    for chain in sorted(kept | memos):
        if chain[0] in names or chain in memos:
            raise UnreadableKernelError(
                f"{'.'.join(chain)} changes while the program runs, in {qualified_name(function)}: "
                "use functools.cache, or pass it as an argument"
            )


def _mutable_defaults(function: Callable[..., Any]) -> set[str]:
    """Return the parameters whose default can keep values from call to call."""
    code = function.__code__
    positional = code.co_varnames[: code.co_argcount]
    defaults = dict(zip(reversed(positional), reversed(function.__defaults__ or ()), strict=False))
    defaults |= function.__kwdefaults__ or {}
    return {name for name, default in defaults.items() if isinstance(default, _MUTABLE)}


def _is_container(names: Names, chain: Chain) -> bool:
    value = names.get(chain[0], MISSING)
    for name in chain[1:]:
        if isinstance(value, (types.ModuleType, type)):
            value = getattr(value, name, MISSING)
        else:
            value = getattr(value, "__dict__", {}).get(name, MISSING)
    return isinstance(value, _MUTABLE)
