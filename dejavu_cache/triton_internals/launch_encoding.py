"""Encode the constants, types and options of a launch as JSON values, and decode them.

Plain values stay as they are; everything else becomes a string with the prefix `json:`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import sys
from collections import namedtuple
from collections.abc import Mapping
from typing import Any

from .triton_objects import python_function

__all__ = [
    "UnencodableValueError",
    "comparable",
    "decode_type",
    "decode_value",
    "encode_type",
    "encode_value",
]

_PREFIX = "json:"
_GLUON = "triton.experimental.gluon.language"

_LAYOUT_VALUE = r"(?:-?\d+|True|False|None|[\[(][\d,\[\]() -]*[\])])"
_LAYOUT = rf"\w+SharedLayout\((?:\w+={_LAYOUT_VALUE}(?:, )?)*\)"
_TYPE = re.compile(
    rf"constexpr|\*?\*?k?[A-Za-z][A-Za-z0-9]*|tensordesc<\w+\[[\d, ]+\](?:,{_LAYOUT})?>", re.ASCII
)
"""Types of arguments. Triton evaluates the layout of a descriptor as Python, so only calls of a
layout with numbers pass."""


class UnencodableValueError(Exception):
    """A value of a type that records have no encoding for."""


def encode_value(value: Any) -> Any:
    """Return a constant or an option as a record keeps it.

    Raises:
        UnencodableValueError: there is no encoding for the value's type.
    """
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, str) and not value.startswith(_PREFIX):
        return value
    return _PREFIX + json.dumps(_to_tree(value), sort_keys=True)


def encode_type(type_: Any) -> str:
    """Return an argument's type, a string or a tuple of types, as a record keeps it."""
    return type_ if isinstance(type_, str) else _PREFIX + json.dumps(_to_tree(type_))


def decode_value(encoded: Any) -> Any:
    """Return the value or type that was encoded.

    Nothing is imported: a jit function is found among the modules that are imported already.

    Raises:
        ValueError: it names a function or a layout that this process does not have.
    """
    if isinstance(encoded, str) and encoded.startswith(_PREFIX):
        return _from_tree(json.loads(encoded[len(_PREFIX) :]))
    return encoded


def decode_type(encoded: str) -> Any:
    """Return the argument's type that was encoded.

    Raises:
        ValueError: it is not a type, or not written as Triton writes types.
    """
    type_ = decode_value(encoded)
    if not _is_type(type_):
        raise ValueError(f"a launch has an argument of the type {encoded[:200]!r}, which is none")
    return type_


def _is_type(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(_is_type(item) for item in value)
    return isinstance(value, str) and _TYPE.fullmatch(value) is not None


def comparable(value: Any) -> str:
    """Return a text that is equal for two options' values even if one of them went through JSON."""
    return json.dumps(value, sort_keys=True, default=str)


def _to_tree(value: Any) -> Any:
    type_name = type(value).__name__
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if type_name == "dtype":
        return {"dtype": str(value)}
    if type_name == "constexpr":
        return {"constexpr": _to_tree(value.value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        items = [[name, _to_tree(item)] for name, item in zip(value._fields, value, strict=True)]
        return {"named": type_name, "fields": items}
    if type(value) is tuple or type_name == "tuple":
        return {"tuple": [_to_tree(item) for item in value]}
    if isinstance(value, list):
        return [_to_tree(item) for item in value]
    if hasattr(value, "cache_key") and hasattr(value, "fn"):
        function = python_function(value)
        return {"jit": f"{function.__module__}:{function.__qualname__}"}
    if dataclasses.is_dataclass(value) and type(value).__module__.startswith(_GLUON):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        return {
            "layout": type_name,
            "fields": {name: _to_tree(getattr(value, name)) for name in names},
        }
    raise UnencodableValueError(f"{type_name} {value!r}")


def _from_tree(tree: Any) -> Any:
    import triton.language as tl

    if isinstance(tree, list):
        return [_from_tree(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    match tree:
        case {"float": text}:
            return float(text)
        case {"dtype": name}:
            return tl.dtype(name)
        case {"constexpr": value}:
            return tl.constexpr(_from_tree(value))
        case {"tuple": items}:
            return tuple(_from_tree(item) for item in items)
        case {"named": name, "fields": fields}:  # the kernel's code reads its items by name
            kind = namedtuple(name, [item for item, _ in fields])  # type: ignore[misc]
            return kind(*(_from_tree(value) for _, value in fields))
        case {"jit": name}:
            return _imported_function(name)
        case {"layout": name, "fields": fields}:
            return _gluon_layout(name, {key: _from_tree(value) for key, value in fields.items()})
    raise ValueError(f"a launch names {tree!r}, which this version does not know")


def _imported_function(name: str) -> Any:
    """Return the jit function of a name, from a module that is imported already.

    A record comes from elsewhere: importing what it names would let it run code.
    """
    module, _, path = name.partition(":")
    function: Any = sys.modules.get(module)
    for part in path.split("."):
        # Unlike getattr, this does not call a lazy module's __getattr__, which may import.
        function = getattr(function, "__dict__", {}).get(part)
    if not hasattr(function, "cache_key"):
        raise ValueError(
            f"a launch is given {name}, which is not imported here: name its module too"
        )
    return function


def _gluon_layout(name: str, fields: Mapping[str, Any]) -> Any:
    from triton.experimental.gluon import language

    layout = getattr(language, name, None) or getattr(getattr(language, "nvidia", None), name, None)
    if not dataclasses.is_dataclass(layout):
        raise ValueError(f"a launch is given the layout {name}, which this Triton does not have")
    return layout(**fields)  # type: ignore[operator]
