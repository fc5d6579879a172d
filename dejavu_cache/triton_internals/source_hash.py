"""Identify a kernel by a hash of its code that ignores comments, formatting and line numbers.

Triton's own `cache_key` hashes the text and the line number, so that a comment above a kernel would
discard its timings. This hash is of normalised syntax trees: the function's and those of all jit
functions that it reaches, with the values of the globals that they read.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["kernel_name", "python_function", "source_hash"]

# Fields that do not change what is computed, and fields that some versions of Python lack.
_IGNORED_FIELDS = frozenset({"ctx", "kind", "type_comment", "type_ignores", "type_params"})
_PLAIN = (int, float, complex, str, bytes, bool, type(None))
_MISSING = object()


def python_function(kernel: Any) -> Callable[..., Any]:
    """Return the Python function under a kernel's decorators (`jit`, `heuristics`, `autotune`)."""
    while not inspect.isfunction(kernel):
        kernel = kernel.fn
    return kernel


def kernel_name(kernel: Any) -> str:
    """Return a kernel's module and qualified name.

    The module of a script that runs as `__main__` is the one it would be imported as.
    """
    function = python_function(kernel)
    module = function.__module__
    if module == "__main__":
        main = sys.modules["__main__"]
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        module = spec.name if spec else Path(file).stem if file else module
    return f"{module}.{function.__qualname__}"


def source_hash(kernel: Any) -> str:
    """Return 32 hexadecimal digits that change when the code does.

    They do not change with comments, docstrings, formatting, line numbers, file paths, decorators'
    arguments, or the version of Python.

    Raises:
        OSError: the source text is not available (Triton itself needs it too).
    """
    hasher = hashlib.sha256()
    for part in _Reader().read(kernel):
        hasher.update(part.encode())
        hasher.update(b"\0")
    return hasher.hexdigest()[:32]


class _Reader:
    """Walk through a function and all that it reaches, each function once."""

    def __init__(self) -> None:
        self._seen: set[Callable[..., Any]] = set()

    def read(self, kernel: Any) -> Iterator[str]:
        function = python_function(kernel)
        if function in self._seen:
            return
        self._seen.add(function)
        tree = _without_decorators(ast.parse(_source(kernel, function)))
        yield "".join(_normalized_parts(tree))
        local = _local_names(tree)
        for chain in sorted(_chains(tree)):
            if chain[0] not in local:
                yield from self._read_value(".".join(chain), _resolve(function, chain))
        for name, default in sorted(_defaults(function)):
            yield from self._read_value(f"default {name}", default)

    def _read_value(self, name: str, value: Any) -> Iterator[str]:
        text = _plain(value)
        if text is not None:
            yield f"{name}={text}"
        elif value is _MISSING or isinstance(value, ModuleType) or _is_builtin(value):
            return
        elif _is_jit(value):
            yield f"{name} calls"
            yield from self.read(value)
        elif getattr(value, "__triton_aggregate__", False):
            for method in sorted(vars(value)):
                yield from self._read_value(f"{name}.{method}", vars(value)[method])


def _source(kernel: Any, function: Callable[..., Any]) -> str:
    """Return a function's source from `def` on; a jit function's may differ from its file's."""
    while not inspect.isfunction(kernel):
        text = getattr(kernel, "src", None)
        if isinstance(text, str):
            return text
        kernel = kernel.fn
    return textwrap.dedent(inspect.getsource(function))


def _without_decorators(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            node.decorator_list = []
    return tree


def _normalized_parts(node: Any) -> Iterator[str]:
    if isinstance(node, ast.AST):
        yield type(node).__name__
        yield "("
        for field in sorted(set(node._fields) - _IGNORED_FIELDS):
            value = getattr(node, field, None)
            if value is None and not isinstance(node, ast.Constant):
                continue
            if value == []:
                continue
            yield f"{field}="
            yield from _normalized_parts(value)
            yield ","
        yield ")"
    elif isinstance(node, list):
        yield "["
        for item in node:
            if not _is_bare_string(item):
                yield from _normalized_parts(item)
                yield ","
        yield "]"
    else:
        yield f"{type(node).__name__}:{node!r}"


def _is_bare_string(node: Any) -> bool:
    """Return whether a node is a docstring, or a string used as a comment."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _local_names(tree: ast.AST) -> set[str]:
    arguments = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    stored = {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    }
    return arguments | stored


def _chains(tree: ast.AST) -> set[tuple[str, ...]]:
    """Return the dotted names that are read, and their prefixes: a, a.b and a.b.c for `a.b.c`."""
    chains = set()
    for node in ast.walk(tree):
        names: list[str] = []
        while isinstance(node, ast.Attribute):
            names.insert(0, node.attr)
            node = node.value
        if isinstance(node, ast.Name):
            chains.add((node.id, *names))
    return chains


def _resolve(function: Callable[..., Any], chain: tuple[str, ...]) -> Any:
    value = _closure_values(function).get(chain[0], function.__globals__.get(chain[0], _MISSING))
    for name in chain[1:]:
        # Only attributes of modules and classes: an instance may compute its own.
        if not isinstance(value, (ModuleType, type)):
            return _MISSING
        value = getattr(value, name, _MISSING)
    return value


def _closure_values(function: Callable[..., Any]) -> dict[str, Any]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    return {name: cell.cell_contents for name, cell in cells if not _is_empty(cell)}


def _is_empty(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - reading an empty cell raises
    except ValueError:
        return True
    return False


def _defaults(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    for parameter in inspect.signature(function).parameters.values():
        if parameter.default is not inspect.Parameter.empty:
            yield parameter.name, parameter.default


def _is_jit(value: Any) -> bool:
    """Return whether a value is a jit function, perhaps decorated, or a `constexpr_function`."""
    if isinstance(value, type) or not hasattr(value, "fn") or not callable(value):
        return False
    try:
        return inspect.isfunction(python_function(value))
    except AttributeError:
        return False


def _is_builtin(value: Any) -> bool:
    """Return whether a value is a function of Triton's own, which is identified by its version."""
    function = (
        python_function(value) if _is_jit(value) else value
    )  # the interpreter's wrapper hides the module
    module = getattr(function, "__module__", None) or ""
    return callable(value) and (
        module == "triton" or module.startswith(("triton.language", "triton.experimental"))
    )


def _plain(value: Any) -> str | None:
    """Return a text for a value that a kernel can be compiled with, or None for anything else."""
    if type(value).__name__ == "constexpr" and hasattr(value, "value"):
        return _plain(value.value)
    if isinstance(value, _PLAIN):
        return f"{type(value).__name__}:{value!r}"
    if isinstance(value, (tuple, list)):
        parts = [_plain(item) for item in value]
        return None if None in parts else f"({','.join(map(str, parts))})"
    if type(value).__name__ == "dtype":
        return f"dtype:{value}"
    return None
