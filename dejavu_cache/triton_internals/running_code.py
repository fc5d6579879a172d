"""The text of a function's file, as far as it is the code that runs.

A file may have been edited since it was imported. So the code of a function must be among the code
that its file compiles to.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import CodeType
from typing import Any

from ..errors import UnreadableKernelError
from .syntax import (
    FunctionSyntax,
    describe_text,
    describe_tree,
    normalized_text,
    parse_repeatedly,
    parse_text,
)
from .triton_objects import qualified_name

__all__ = ["describe_function", "text_of_code", "text_of_file"]


def describe_function(function: Callable[..., Any]) -> FunctionSyntax:
    """Return the syntax of a function from its file, which must still be the one imported.

    Raises:
        OSError: the source text is not available.
        SyntaxError: the file cannot be parsed.
        UnreadableKernelError: the file does not hold the function's code, or not clearly.
    """
    if function.__name__ == "<lambda>":
        return describe_tree(_find_lambda(function))
    lines, start = _lines_of_running_code(function)
    return describe_text("".join(inspect.getblock(lines[start:])))


def text_of_file(function: Callable[..., Any]) -> str:
    """Return the text of the file that a function is from.

    Raises:
        OSError: it is not available.
    """
    lines, _ = inspect.findsource(function.__code__)
    return "".join(lines)


def text_of_code(code: Any) -> str:
    """Return a function's code as text to compare, without its positions within lines."""
    if isinstance(code, tuple):
        return f"({','.join(map(text_of_code, code))})"
    if isinstance(code, frozenset):
        return f"{{{','.join(sorted(map(text_of_code, code)))}}}"
    if not isinstance(code, CodeType):
        return f"{type(code).__name__} {code!r}"  # 0.0 and -0.0 are equal
    parts = (
        (code.co_name, code.co_firstlineno, code.co_flags & _KINDS_OF_PARAMETERS),
        (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount),
        (code.co_code, getattr(code, "co_exceptiontable", b"")),
        (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars),
    )
    return f"{parts!r}{text_of_code(code.co_consts)}"


_KINDS_OF_PARAMETERS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


def _lines_of_running_code(function: Callable[..., Any]) -> tuple[list[str], int]:
    """Return the lines of a function's file, and the index of its first.

    Raises:
        OSError: the source text is not available.
        SyntaxError: the file cannot be parsed.
        UnreadableKernelError: the file holds other code than the function.
    """
    code = function.__code__
    lines, start = inspect.findsource(code)
    if text_of_code(code) not in _codes_of("".join(lines)):
        raise UnreadableKernelError(
            f"{qualified_name(function)} is other code than its file {code.co_filename} holds: "
            "the file has changed since it was imported"
        )
    return lines, start


@lru_cache(maxsize=16)
def _codes_of(text: str) -> frozenset[str]:
    """Return the code of all functions in a file's text."""
    module = parse_repeatedly(lambda: compile(text, "<source>", "exec", dont_inherit=True))
    return frozenset(map(text_of_code, _nested_code(module)))


def _nested_code(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested_code(constant)


def _find_lambda(function: Callable[..., Any]) -> ast.AST:
    """Find a lambda: on its line of the file, and compiled to its code."""
    code = function.__code__
    lines, _ = _lines_of_running_code(function)
    text = "".join(lines)
    candidates = _lambdas(text).get(code.co_firstlineno, [])
    if len(candidates) > 1:
        candidates = _lambdas_by_code(text, code.co_firstlineno).get(text_of_code(code), [])
    if len({normalized_text(node) for node in candidates}) != 1:
        raise UnreadableKernelError(
            f"{qualified_name(function)} cannot be told from other lambdas on its line: "
            "give it a line of its own"
        )
    return candidates[0]


@lru_cache(maxsize=16)
def _lambdas(text: str) -> dict[int, list[ast.Lambda]]:
    """Return the lambdas of a file by their line."""
    lambdas: dict[int, list[ast.Lambda]] = {}
    for node in ast.walk(parse_text(text)):
        if isinstance(node, ast.Lambda):
            lambdas.setdefault(node.lineno, []).append(node)
    return lambdas


@lru_cache(maxsize=64)
def _lambdas_by_code(text: str, line: int) -> dict[str, list[ast.Lambda]]:
    """Return the lambdas of a line by the code that each compiles to."""
    lambdas: dict[str, list[ast.Lambda]] = {}
    for node in _lambdas(text)[line]:
        compiled = compile(ast.Expression(node), "<source>", "eval", dont_inherit=True)
        *_, code = (constant for constant in compiled.co_consts if isinstance(constant, CodeType))
        lambdas.setdefault(text_of_code(code), []).append(node)
    return lambdas
