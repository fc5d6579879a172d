"""Recognise Triton's objects: jit functions, wrapped constants, dtypes, what is Triton's own."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = [
    "dtype_name",
    "find_jit_function",
    "is_jit",
    "is_triton_own",
    "jit_function",
    "module_name",
    "python_function",
    "qualified_name",
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
    """Return whether a value is what a name in Triton's package stands for: its version tells."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not (isinstance(module, str) and isinstance(name, str) and callable(value)):
        return False
    found: Any = sys.modules.get(module) if module.partition(".")[0] == "triton" else None
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is value


def dtype_name(dtype: Any) -> str:
    """Return a dtype's name, such as `float16` for `torch.float16`."""
    return str(dtype).removeprefix("torch.")
