"""Normalised syntax trees: what a function's text says, without comments, formatting, positions."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple, TypeVar

from .syntax_names import (
    Chain,
    Import,
    annotations_of,
    chain_of,
    find_bare_names,
    find_bound_names,
    find_changed_names,
    find_fetched_names,
    find_imports,
    find_mutated_names,
    find_names_bound_by_statements,
    find_names_read_first,
    find_reflection,
    nodes_of_body,
)

__all__ = [
    "FunctionSyntax",
    "describe_text",
    "describe_tree",
    "normalized_text",
    "parse_repeatedly",
    "parse_text",
]

# Fields that do not change what is computed, and fields that some versions of Python lack.
_IGNORED_FIELDS = frozenset({"ctx", "kind", "type_comment", "type_ignores", "type_params"})

_TRIES = 9

Parsed = TypeVar("Parsed")


class FunctionSyntax(NamedTuple):
    """The text of a function, without its decorators.

    Attributes:
        normalized: equal for equal code in all versions of Python.
        local_names: names that are parameters or assigned anywhere.
        dotted_names: dotted names that are read, and their prefixes: a, a.b and a.b.c for `a.b.c`.
        bare_names: dotted names that are read in the body as a whole: only a.b.c for `a.b.c`.
        read_first: names that may be read before they are assigned. Triton looks such a name up
            among the globals, although Python would not.
        annotations: the parameters' annotations; none of a lambda.
        bound_names: names that are bound by another statement than an assignment: by an import, a
            nested function or class, an `except` or a `case`.
        imports: the imports inside the function.
        fetched_names: dotted names that `getattr` reads, and `hasattr` without their values.
        declared_names: names that a `global` or `nonlocal` statement lets the function assign.
        changed_names: dotted names of which an item or an attribute is assigned or deleted.
        mutated_names: dotted names on which a method is called that changes containers.
        reflection: attributes that are read and that show what `normalized` leaves out.
    """

    normalized: str
    local_names: frozenset[str]
    dotted_names: frozenset[Chain]
    bare_names: frozenset[Chain]
    read_first: frozenset[str]
    annotations: Mapping[str, str]
    bound_names: frozenset[str]
    imports: frozenset[Import]
    fetched_names: frozenset[Chain]
    declared_names: frozenset[str]
    changed_names: frozenset[Chain]
    mutated_names: frozenset[Chain]
    reflection: frozenset[str]


def describe_text(text: str) -> FunctionSyntax:
    """Return the syntax of a function's text.

    Raises:
        SyntaxError: it cannot be parsed.
    """
    text = textwrap.dedent(text)
    if text[:1].isspace():  # a string's lines begin left of the function's
        text = f"if True:\n{text}"
    tree = parse_text(text)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            node.decorator_list = []  # the values of the outermost one's are read
            break
    return describe_tree(tree)


def parse_repeatedly(parse: Callable[[], Parsed]) -> Parsed:
    """Return what a function parses; it is called again if Python confuses it with another parse.

    Before 3.11.8, all threads share the parser's count of the depth, and one of them fails.
    """
    for _ in range(_TRIES):
        with suppress(SystemError):
            return parse()
    return parse()


def parse_text(text: str) -> ast.AST:
    """Return the syntax tree of a text.

    Raises:
        SyntaxError: it cannot be parsed.
    """
    return parse_repeatedly(lambda: ast.parse(text))


def describe_tree(tree: ast.AST) -> FunctionSyntax:
    """Return the syntax of a function's tree."""
    nodes = list(ast.walk(tree))
    return FunctionSyntax(
        normalized=normalized_text(tree),
        local_names=frozenset(find_bound_names(nodes)),
        dotted_names=frozenset(chain for node in nodes if (chain := chain_of(node))),
        bare_names=frozenset(find_bare_names(nodes_of_body(nodes))),
        read_first=frozenset(find_names_read_first(tree)),
        annotations=annotations_of(nodes),
        bound_names=frozenset(find_names_bound_by_statements(nodes_of_body(nodes))),
        imports=frozenset(find_imports(nodes)),
        fetched_names=frozenset(find_fetched_names(nodes)),
        declared_names=frozenset(
            name
            for node in nodes
            if isinstance(node, (ast.Global, ast.Nonlocal))
            for name in node.names
        ),
        changed_names=frozenset(find_changed_names(nodes)),
        mutated_names=frozenset(find_mutated_names(nodes)),
        reflection=frozenset(find_reflection(nodes)),
    )


def normalized_text(node: ast.AST) -> str:
    """Return a tree as text that is equal for equal code in all versions of Python."""
    parts: list[str] = []
    _normalize(node, parts)
    return "".join(parts)


def _normalize(node: Any, parts: list[str]) -> None:
    """Write a tree such that equal code gives equal text in all versions of Python."""
    if isinstance(node, ast.AST):
        parts += (type(node).__name__, "(")
        for field in _fields(type(node)):  # type: ignore[arg-type]
            value = getattr(node, field, None)
            if value is None and not isinstance(node, ast.Constant):
                continue
            if value == []:
                continue
            parts.append(f"{field}=")
            _normalize(_joined(value) if isinstance(node, ast.JoinedStr) else value, parts)
            parts.append(",")
        parts.append(")")
    elif isinstance(node, list):
        parts.append("[")
        for item in node:
            if not _is_bare_string(item):
                _normalize(item, parts)
                parts.append(",")
        parts.append("]")
    else:
        # `repr` leaves a character as it is if this Python's Unicode tables call it printable.
        parts.append(f"{type(node).__name__}:{node!a}")


@cache
def _fields(kind: type[ast.AST]) -> list[str]:
    return sorted(set(kind._fields) - _IGNORED_FIELDS)


def _joined(values: Any) -> list[ast.expr]:
    """Join a formatted string's neighbouring constants, which Python 3.12 keeps apart."""
    joined: list[ast.expr] = []
    for value in values:
        text = value.value if isinstance(value, ast.Constant) else None
        last = joined[-1] if joined else None
        if text == "":
            continue
        if isinstance(text, str) and isinstance(last, ast.Constant):
            joined[-1] = ast.Constant(str(last.value) + text)
        else:
            joined.append(value)
    return joined


def _is_bare_string(node: Any) -> bool:
    """Return whether a node is a docstring, or a string used as a comment."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
