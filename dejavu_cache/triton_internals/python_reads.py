"""What a function that Python runs, such as a heuristic, reads besides its arguments.

Triton lets a jit function read little, and fails to compile what is not there. Python lets a
function read anything. Whatever of it a hash cannot stand for is refused, so that a value which
changes between two processes cannot hide behind an equal identity.
"""

from __future__ import annotations

import builtins
import types
from collections.abc import Callable, MutableMapping, MutableSequence, MutableSet
from typing import Any

from ..errors import UnreadableKernelError
from .constants import library_of
from .name_values import MISSING, Names, has_fixed_attributes, is_standard, resolve
from .pure_functions import (
    is_pure_builtin,
    is_pure_class,
    is_pure_function,
    is_pure_module,
    refuse_impure,
)
from .syntax import FunctionSyntax
from .syntax_names import ANY_ATTRIBUTE, Chain
from .triton_objects import is_jit, is_triton_own, python_function, qualified_name, unwrap

__all__ = ["check_reads"]

_MUTABLE = (MutableMapping, MutableSequence, MutableSet)


def check_reads(function: Callable[..., Any], syntax: FunctionSyntax, names: Names) -> None:
    """Refuse a Python function that reads what no hash of its code and constants stands for.

    Args:
        function: the function, which Python runs.
        syntax: what its text says.
        names: the values of its globals, of what it closes over, and of its imports.

    Raises:
        UnreadableKernelError: it reads something else, or changes what it reads.
    """
    inner = _inner_names(syntax, names)
    for chain in sorted(syntax.bare_names | syntax.fetched_names):
        if chain[0] not in inner:
            _check_name(function, names, chain)
    _check_changes(function, syntax, names)


def _inner_names(syntax: FunctionSyntax, names: Names) -> frozenset[str]:
    """Return the names that always stand for what the function itself binds.

    The syntax holds the names of nested functions too. One that is bound in one of these may be
    read in another, and is a global or Python's own there.
    """
    by_statement = syntax.bound_names - syntax.read_first - names.keys()
    bound = syntax.local_names | syntax.bound_names
    without_outer_value = {name for name in bound - names.keys() if not hasattr(builtins, name)}
    return _assigned_first(syntax) | by_statement | without_outer_value


def _assigned_first(syntax: FunctionSyntax) -> frozenset[str]:
    """Return the local names that are assigned before they are read."""
    return syntax.local_names - syntax.read_first


def _check_name(function: Callable[..., Any], names: Names, chain: Chain) -> None:
    if chain[0] not in names:
        _check_builtin(function, chain[0])
        return
    value = names[chain[0]]
    for index, name in enumerate(chain[1:], 1):
        if not has_fixed_attributes(value):
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


def _check_changes(function: Callable[..., Any], syntax: FunctionSyntax, names: Names) -> None:
    """Refuse a function that keeps values: what it reads would depend on what ran before."""
    outer = set(function.__code__.co_freevars) | set(function.__globals__)
    hidden = _assigned_first(syntax)
    assigned = {(name,) for name in syntax.declared_names & syntax.local_names & outer}
    changed = {chain for chain in syntax.changed_names if chain[0] not in hidden}
    mutated = {
        chain
        for chain in syntax.mutated_names
        if chain[0] not in hidden and _is_container(names, chain)
    }
    defaults = _mutable_defaults(function)
    memos = {chain for chain in syntax.changed_names | syntax.mutated_names if chain[0] in defaults}
    for chain in sorted(assigned | changed | mutated | memos):
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
