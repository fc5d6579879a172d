"""Functions and classes of libraries whose results depend on nothing but their arguments.

A library's version identifies its code, but not what it reads while it runs: a variable of the
environment, a clock, a setting. Only what is known to read none of these is taken by name. What
reads the device may be used, since the device is part of the environment.
"""

from __future__ import annotations

import builtins
import types
from typing import Any

from ..errors import UnreadableKernelError
from .triton_objects import is_in_language

__all__ = [
    "is_pure_builtin",
    "is_pure_class",
    "is_pure_function",
    "is_pure_module",
    "refuse_impure",
]

# Modules of Python's own that read nothing outside, also in C, where names begin with `_`.
_PURE_MODULES = frozenset(
    {"math", "cmath", "operator", "functools", "itertools", "enum", "dataclasses", "typing"}
    | {"collections", "collections.abc", "fractions", "numbers", "bisect", "heapq", "string", "re"}
    | {"types", "abc", "copy", "struct", "textwrap", "statistics", "contextlib", "reprlib"}
    | {"_operator", "_functools", "_collections", "_collections_abc", "_bisect", "_heapq"}
    | {"_struct", "_abc", "_typing"}
)
# `setattr` and `delattr` write; what they write to is looked at where they are called.
_PURE_BUILTINS = frozenset(
    {"abs", "all", "any", "ascii", "bin", "bool", "bytearray", "bytes", "callable", "chr"}
    | {"classmethod", "complex", "delattr", "dict", "divmod", "enumerate", "filter", "float"}
    | {"format", "frozenset", "getattr", "hasattr", "hex", "int", "isinstance", "issubclass"}
    | {"iter", "len", "list", "map", "max", "min", "next", "object", "oct", "ord", "pow", "print"}
    | {"property", "range", "repr", "reversed", "round", "set", "setattr", "slice", "sorted"}
    | {"staticmethod", "str", "sum", "super", "tuple", "type", "zip"}
    | {"None", "True", "False", "Ellipsis", "NotImplemented"}
)
_DEVICE_FUNCTIONS = frozenset(
    {"current_device", "get_device_capability", "get_device_name", "get_device_properties"}
    | {"is_available", "is_bf16_supported"}
)
_PURE_FUNCTIONS = frozenset(
    {"_warnings.warn", "warnings.warn", "torch.is_tensor", "torch.functional.broadcast_shapes"}
    | {f"torch.{device}.{name}" for device in ("cuda", "xpu") for name in _DEVICE_FUNCTIONS}
)
# PyTorch defines these in C, as methods of one class.
_PURE_TORCH_METHODS = frozenset(
    {"can_cast", "is_complex", "is_floating_point", "is_signed", "numel", "promote_types"}
)
_PURE_CLASSES = {
    "torch": frozenset(
        {"Size", "SymBool", "SymFloat", "SymInt", "Tensor", "device", "dtype", "finfo", "iinfo"}
        | {"layout", "memory_format"}
    ),
    "torch.nn.parameter": frozenset({"Parameter"}),
}


def is_pure_builtin(name: str) -> bool:
    """Return whether a name of Python's own reads nothing but its arguments."""
    value = getattr(builtins, name, None)
    return name in _PURE_BUILTINS or (isinstance(value, type) and issubclass(value, BaseException))


def is_pure_function(function: Any) -> bool:
    """Return whether a library's function, or a method in C, reads nothing but its arguments."""
    module = getattr(function, "__module__", None) or ""
    name = function.__name__
    owner = getattr(function, "__self__", None)
    if isinstance(owner, type):
        if owner.__name__ == "_VariableFunctionsClass":
            return name in _PURE_TORCH_METHODS
        return is_pure_class(owner)
    if module == "builtins":
        return is_pure_builtin(name)
    top = module.partition(".")[0]
    if top == "triton":
        return is_in_language(module)
    return module in _PURE_MODULES or f"{module}.{function.__qualname__}" in _PURE_FUNCTIONS


def is_pure_class(kind: type) -> bool:
    """Return whether a library's class makes objects from nothing but its arguments."""
    module = kind.__module__
    if module == "builtins":
        return is_pure_builtin(kind.__name__) or kind is types.NoneType
    if issubclass(kind, BaseException) or module.partition(".")[0] == "triton":
        return True
    if module.partition(".")[0] == "numpy":
        return any(base.__name__ in ("generic", "ndarray", "dtype") for base in kind.__mro__)
    return module in _PURE_MODULES or kind.__name__ in _PURE_CLASSES.get(module, ())


def is_pure_module(module: types.ModuleType) -> bool:
    """Return whether all of a module of Python's or Triton's own may be used by name."""
    return module.__name__ in _PURE_MODULES or is_in_language(module.__name__)


def refuse_impure(name: str, value: Any) -> UnreadableKernelError:
    """Return the error of a kernel that reads a library's function, class or module by a name."""
    if isinstance(value, types.ModuleType):
        path = value.__name__
    else:
        owner = getattr(value, "__self__", None)
        module = getattr(value, "__module__", None) or getattr(owner, "__module__", None) or ""
        path = f"{module}.{getattr(value, '__qualname__', value)}"
    meaning = name if name == path else f"{name}, which is {path},"
    return UnreadableKernelError(
        f"{meaning} may read more than its arguments: call it at the module's top, for a constant"
    )
