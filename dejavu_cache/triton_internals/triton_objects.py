"""Recognise Triton's objects: jit functions, wrapped constants, dtypes, what is Triton's own."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = [
    "defining_module",
    "dtype_name",
    "find_jit_function",
    "is_in_language",
    "is_jit",
    "is_triton_own",
    "jit_function",
    "module_name",
    "python_function",
    "qualified_name",
    "unwrap",
]


def python_function(kernel: Any) -> Callable[..., Any]:
    """Return the Python function under a kernel's decorators (`jit`, `heuristics`, `autotune`)."""
    while not inspect.isfunction(kernel):
        kernel = kernel.fn
    return kernel


def jit_function(kernel: Any) -> Any:
    """Return the `JITFunction` at the bottom of a stack of autotuners and heuristics."""
    while hasattr(kernel.fn, "fn"):
        kernel = kernel.fn
    return kernel


def find_jit_function(value: Any) -> Any | None:
    """Return the `JITFunction` inside a decorated kernel, or None if a value is something else."""
    from triton.runtime.jit import JITFunction

    try:
        function = jit_function(value)
    except AttributeError:
        return None
    return function if isinstance(function, JITFunction) else None


def qualified_name(definition: Any) -> str:
    """Return the module and name of a function or class, as the definition itself has them."""
    return f"{definition.__module__}.{definition.__qualname__}"


def module_name(definition: Any) -> str:
    """Return the module of a function or class.

    That of a script which runs as `__main__`, or which a spawned process imports as `__mp_main__`,
    is the one it would be imported as.
    """
    module: str = getattr(definition, "__module__", None) or ""
    if module in ("__main__", "__mp_main__"):
        main = sys.modules[module]
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        return spec.name if spec else Path(file).stem if file else "__main__"
    return module


def is_jit(value: Any) -> bool:
    """Return whether a value is a jit function, perhaps decorated, or a `constexpr_function`."""
    if isinstance(value, type) or not hasattr(value, "fn") or not callable(value):
        return False
    if not _has_class_of_triton(value):
        return False  # it runs code of its own, and is read with all that it holds
    try:
        return inspect.isfunction(python_function(value))
    except AttributeError:
        return False


def _has_class_of_triton(value: Any) -> bool:
    """Return whether an object's class is one of Triton's, or made from one."""
    return any(kind.__module__.partition(".")[0] == "triton" for kind in type(value).__mro__)


def is_triton_own(value: Any) -> bool:
    """Return whether a value is a function or class of Triton's, identified by its version."""
    # The interpreter's wrapper hides the module.
    function = python_function(value) if is_jit(value) else value
    module = getattr(function, "__module__", None) or ""
    if not callable(value) or module.partition(".")[0] != "triton":
        return False
    is_defined = isinstance(function, (type, types.BuiltinFunctionType)) or (
        isinstance(function, types.FunctionType)
        and defining_module(function).partition(".")[0] == "triton"
    )
    # Triton's tools hold kernels that are read like anybody's.
    return is_defined and (is_in_language(module) or not is_jit(value))


def is_in_language(module: str) -> bool:
    """Return whether a module of Triton's is part of the language that kernels are written in."""
    return module == "triton" or module.startswith(("triton.language", "triton.experimental"))


def unwrap(value: Any) -> tuple[Any, bool]:
    """Return a constant without its `tl.constexpr`, and whether it had one."""
    wrapped = False
    while type(value).__name__ == "constexpr" and hasattr(value, "value"):
        value, wrapped = value.value, True
    return value, wrapped


def defining_module(function: Any) -> str:
    """Return the module whose code a function is; `functools.wraps` sets another's name on it."""
    return str(function.__globals__.get("__name__", ""))


def dtype_name(dtype: Any) -> str:
    """Return a dtype's name, such as `float16` for `torch.float16`."""
    return str(dtype).removeprefix("torch.")
