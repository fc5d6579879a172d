"""Tell what an author wrote in a class from what Python, dataclasses and Triton put there."""

from __future__ import annotations

import dataclasses
import enum
import reprlib
import sys
from collections.abc import Iterator
from typing import Any

from ..errors import UnreadableKernelError

__all__ = [
    "aggregated_class",
    "authored_attributes",
    "authored_members",
    "has_generated_methods",
    "is_found_by_name",
    "slots_of",
]

_GENERATED = frozenset(
    {"__init__", "__new__", "__repr__", "__eq__", "__lt__", "__le__", "__gt__", "__ge__"}
    | {"__hash__", "__setattr__", "__delattr__"}
)
"""Methods that dataclasses and named tuples generate as text."""

_MADE_BY_PYTHON = frozenset(
    {"__doc__", "__module__", "__dict__", "__weakref__", "__qualname__", "__annotations__"}
    | {"__match_args__", "__dataclass_params__", "__dataclass_fields__", "__firstlineno__"}
    | {"__static_attributes__", "__annotate__", "__annotate_func__", "__annotations_cache__"}
    | {"__abstractmethods__", "_abc_impl", "__orig_bases__", "__parameters__", "_is_protocol"}
    | {"__protocol_attrs__", "__non_callable_proto_members__", "__slots__", "__hash__"}
)
"""Attributes that Python itself puts into a class; which ones, depends on its version."""


def authored_members(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the names and values that an author wrote into a class, sorted.

    The members of an enum are not among them.
    """
    for name in sorted(set(vars(kind)) - _MADE_BY_PYTHON):
        member = vars(kind)[name]
        if type(member).__name__ in ("member_descriptor", "getset_descriptor", "_tuplegetter"):
            continue
        if isinstance(kind, enum.EnumMeta) and _is_made_for_enum(kind, name):
            continue
        if not _is_generated(member, kind):
            yield name, member


def authored_attributes(member: enum.Enum) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of an enum member's attributes, sorted, without Python's own."""
    for name, value in sorted(vars(member).items()):
        if not _is_reserved(name):
            yield name, value


def is_found_by_name(kind: type) -> bool:
    """Return whether a class stands in its module under its name.

    Those that `make_dataclass` makes name the module `types` and are not there.
    """
    definition: Any = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        definition = getattr(definition, name, None)
    return definition is kind


def aggregated_class(aggregate: type) -> type:
    """Return the class that `triton.language.core._aggregate` decorated; its methods hold it."""
    for member in vars(aggregate).values():
        for cell in getattr(member, "__closure__", None) or ():
            inner = cell.cell_contents
            if not isinstance(inner, type) or inner.__qualname__ != aggregate.__qualname__:
                continue
            if inner is not aggregate and not getattr(inner, "__triton_aggregate__", False):
                return inner
    raise UnreadableKernelError(f"the aggregate {aggregate.__qualname__} hides its class")


def has_generated_methods(kind: type) -> bool:
    """Return whether Python makes a class's methods, and the order of its fields, from fields."""
    return hasattr(kind, "__dataclass_fields__") or hasattr(kind, "_fields")


def slots_of(kind: type) -> list[str]:
    """Return the names of the attributes for which a class itself declares slots."""
    slots = vars(kind).get("__slots__", ())
    names = [slots] if isinstance(slots, str) else list(slots)
    return [_mangle(kind, name) for name in names if name not in ("__dict__", "__weakref__")]


def _is_generated(member: Any, kind: type) -> bool:
    """Return whether a method was generated from a class's fields, as dataclasses do."""
    if not has_generated_methods(kind):
        return False
    function = _function_of(member)
    code = getattr(function, "__code__", None)
    if code is not None and code.co_filename == reprlib.__file__:
        # Newer versions of Python guard a generated `__repr__` against recursion.
        code = getattr(getattr(function, "__wrapped__", None), "__code__", None)
    if code is None:
        return False
    is_text = code.co_filename == "<string>" and function.__name__ in _GENERATED
    return is_text or code.co_filename == dataclasses.__file__


def _is_made_for_enum(kind: enum.EnumMeta, attribute: str) -> bool:
    """Return whether an attribute of an enum is a member, or what Python itself puts there."""
    function = _function_of(vars(kind)[attribute])
    is_own = getattr(function, "__module__", None) == kind.__module__
    return attribute in kind.__members__ or (_is_reserved(attribute) and not is_own)


def _function_of(member: Any) -> Any:
    return getattr(member, "__func__", None) or getattr(member, "fget", None) or member


def _is_reserved(name: str) -> bool:
    """Return whether a name of an enum is Python's own, such as `_value_` or `__objclass__`."""
    return name.startswith("_") and name.endswith("_")


def _mangle(kind: type, name: str) -> str:
    """Return the name that Python gives a private attribute of a class."""
    is_private = name.startswith("__") and not name.endswith("__")
    return f"_{kind.__name__.lstrip('_')}{name}" if is_private else name
