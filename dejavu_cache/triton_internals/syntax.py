"""Normalised syntax trees: what a function's text says, without comments, formatting and places."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from types import CodeType
from typing import Any, NamedTuple, TypeVar

from ..errors import UnreadableKernelError

__all__ = [
    "ANY_ATTRIBUTE",
    "Chain",
    "FunctionSyntax",
    "Import",
    "describe_function",
    "describe_text",
    "parse_repeatedly",
    "text_of_code",
    "text_of_file",
]

# Fields that do not change what is computed, and fields that some versions of Python lack.
_IGNORED_FIELDS = frozenset({"ctx", "kind", "type_comment", "type_ignores", "type_params"})

_TRIES = 9

Parsed = TypeVar("Parsed")

Chain = tuple[str, ...]
"""A dotted name: `("tl", "load")` for `tl.load`."""

Import = tuple[str, str, str, int]
"""An import inside a function: the name that it binds, the module, what is taken from it (empty
for the module itself, or `as` for a submodule under a name of its own), and the leading dots."""

ANY_ATTRIBUTE = "*"
"""Ends a dotted name of which an attribute is read by a name that only the running code knows,
or of which only the presence is asked for."""


class FunctionSyntax(NamedTuple):
    """The text of a function, without its decorators.

    Attributes:
        normalized: equal for equal code in all versions of Python.
        local_names: names that are parameters or assigned anywhere.
        dotted_names: dotted names that are read, and their prefixes: a, a.b and a.b.c for `a.b.c`.
        bare_names: those in the body of which no attribute is read: a.b.c alone for `a.b.c`.
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


def describe_text(text: str) -> FunctionSyntax:
    """Return the syntax of a function's text.

    Raises:
        SyntaxError: it cannot be parsed.
    """
    text = textwrap.dedent(text)
    if text[:1].isspace():  # a string's lines begin left of the function's
        text = f"if True:\n{text}"
    tree = _parse(text)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            node.decorator_list = []
    return _describe(tree)


def describe_function(function: Callable[..., Any]) -> FunctionSyntax:
    """Return the syntax of a function from its file, which must still be the one imported.

    Raises:
        OSError: the source text is not available.
        SyntaxError: the file cannot be parsed.
        UnreadableKernelError: the file does not hold the function's code, or not clearly.
    """
    if function.__name__ == "<lambda>":
        return _describe(_find_lambda(function))
    lines, start = _lines_of_running_code(function)
    return describe_text("".join(inspect.getblock(lines[start:])))


def parse_repeatedly(parse: Callable[[], Parsed]) -> Parsed:
    """Return what a function parses; it is called again if Python confuses it with another parse.

    Before 3.11.8, all threads share the parser's count of the depth, and one of them fails.
    """
    for _ in range(_TRIES):
        with suppress(SystemError):
            return parse()
    return parse()


def _parse(text: str) -> ast.AST:
    return parse_repeatedly(lambda: ast.parse(text))


def _describe(tree: ast.AST) -> FunctionSyntax:
    parts: list[str] = []
    _normalize(tree, parts)
    nodes = list(ast.walk(tree))
    finder = _ReadsFinder()
    finder.visit(tree)
    return FunctionSyntax(
        normalized="".join(parts),
        local_names=frozenset(_bound_names(nodes)),
        dotted_names=frozenset(chain for node in nodes if (chain := _chain(node))),
        bare_names=frozenset(_bare_names(_body(nodes))),
        read_first=frozenset(finder.read_first),
        annotations=_annotations(nodes),
        bound_names=frozenset(_names_bound_by_statements(_body(nodes))),
        imports=frozenset(_imports(nodes)),
        fetched_names=frozenset(_fetched_names(nodes)),
        declared_names=frozenset(
            name
            for node in nodes
            if isinstance(node, (ast.Global, ast.Nonlocal))
            for name in node.names
        ),
        changed_names=frozenset(_changed_names(nodes)),
        mutated_names=frozenset(_mutated_names(nodes)),
    )


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
            f"{_name(function)} is other code than its file {code.co_filename} holds: "
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
    candidates = _lambdas("".join(lines)).get(code.co_firstlineno, [])
    if len(candidates) > 1:
        candidates = [node for node in candidates if _compiles_to(node, code)]
    if len({_normalized(node) for node in candidates}) != 1:
        raise UnreadableKernelError(f"{_name(function)} is not found in its file")
    return candidates[0]


@lru_cache(maxsize=16)
def _lambdas(text: str) -> dict[int, list[ast.Lambda]]:
    """Return the lambdas of a file by their line."""
    lambdas: dict[int, list[ast.Lambda]] = {}
    for node in ast.walk(_parse(text)):
        if isinstance(node, ast.Lambda):
            lambdas.setdefault(node.lineno, []).append(node)
    return lambdas


def _compiles_to(node: ast.Lambda, code: Any) -> bool:
    compiled = compile(ast.Expression(node), "<lambda>", "eval").co_consts[0]
    return bool(
        compiled.co_code == code.co_code
        and repr(compiled.co_consts) == repr(code.co_consts)
        and compiled.co_names + compiled.co_varnames == code.co_names + code.co_varnames
    )


def _name(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def _normalized(node: ast.AST) -> str:
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


def _bound_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id


def _names_bound_by_statements(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                yield alias.asname or alias.name.partition(".")[0]
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)):
            yield from [node.name] if node.name else []
        elif isinstance(node, ast.MatchMapping):
            yield from [node.rest] if node.rest else []


def _imports(nodes: Iterable[ast.AST]) -> Iterator[Import]:
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                yield alias.asname or top, alias.name, "as" if alias.asname else "", 0
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, node.module or "", alias.name, node.level


def _fetched_names(nodes: Iterable[ast.AST]) -> Iterator[Chain]:
    for node in nodes:
        if not isinstance(node, ast.Call) or len(node.args) < 2:
            continue
        if isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
            owner, name = _chain(node.args[0]), node.args[1]
            if owner:
                known = str(name.value) if isinstance(name, ast.Constant) else ANY_ATTRIBUTE
                yield *owner, known if node.func.id == "getattr" else ANY_ATTRIBUTE


_MUTATING_METHODS = frozenset(
    {"add", "append", "appendleft", "clear", "difference_update", "discard", "extend"}
    | {"extendleft", "insert", "intersection_update", "move_to_end", "pop", "popitem", "popleft"}
    | {"remove", "reverse", "rotate", "setdefault", "sort", "symmetric_difference_update"}
    | {"update", "__delitem__", "__ior__", "__setattr__", "__setitem__"}
)


def _changed_names(nodes: Iterable[ast.AST]) -> Iterator[Chain]:
    for node in nodes:
        if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
            chain = _owner(node.value)
        elif (
            isinstance(node, ast.Call)
            and node.args
            and isinstance(node.func, ast.Name)
            and node.func.id in ("setattr", "delattr")
        ):
            chain = _owner(node.args[0])
        else:
            continue
        if chain:
            yield chain


def _mutated_names(nodes: Iterable[ast.AST]) -> Iterator[Chain]:
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr in _MUTATING_METHODS:
            chain = _owner(node.value)
            if chain:
                yield chain


def _owner(node: ast.AST) -> Chain | None:
    """Return the dotted name of an object in which a part is found by subscripts."""
    names: list[str] = []
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        names = [node.attr, *names] if isinstance(node, ast.Attribute) else []
        node = node.value
    return (node.id, *names) if isinstance(node, ast.Name) else None


def _body(nodes: Iterable[ast.AST]) -> list[ast.AST]:
    """Return the nodes in the body of the first function, or none where there is no function."""
    kinds = (ast.FunctionDef, ast.Lambda)
    definition = next((node for node in nodes if isinstance(node, kinds)), None)
    if definition is None:
        return []
    body = definition.body if isinstance(definition, ast.FunctionDef) else [definition.body]
    return [inner for node in body for inner in ast.walk(node)]


def _bare_names(nodes: Sequence[ast.AST]) -> Iterator[Chain]:
    inner = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    for node in nodes:
        if id(node) not in inner and (chain := _chain(node)):
            yield chain


def _annotations(nodes: Iterable[ast.AST]) -> dict[str, str]:
    definition = next((node for node in nodes if isinstance(node, ast.FunctionDef)), None)
    if definition is None:
        return {}
    arguments = definition.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return {
        argument.arg: ast.unparse(argument.annotation)
        for argument in every
        if argument.annotation is not None
    }


def _chain(node: ast.AST) -> Chain | None:
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return (node.id, *names) if isinstance(node, ast.Name) else None


class _ReadsFinder(ast.NodeVisitor):
    """Walk through a function in the order of its evaluation, with the names assigned so far."""

    def __init__(self) -> None:
        self.read_first: set[str] = set()
        self._assigned: set[str] = set()

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Store):
            self._assigned.add(node.id)
            return
        if node.id not in self._assigned:
            self.read_first.add(node.id)
        if isinstance(node.ctx, ast.Del):
            self._assigned.discard(node.id)

    def visit_Assign(self, node: ast.Assign) -> None:
        self._visit_all([node.value, *node.targets])

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.visit(node.annotation)
        if node.value is None:  # a declaration assigns nothing
            return
        self._visit_all([node.value, node.target])

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name) and node.target.id not in self._assigned:
            self.read_first.add(node.target.id)
        self._visit_all([node.value, node.target])

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._visit_all([node.value, node.target])

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        self._visit_branches(node.body, node.orelse)

    def visit_For(self, node: ast.For) -> None:
        self.visit(node.iter)
        self._visit_branches([node.target, *node.body], [])
        self._visit_all(node.orelse)

    def visit_While(self, node: ast.While) -> None:
        self.visit(node.test)
        self._visit_branches(node.body, [])
        self._visit_all(node.orelse)

    def visit_Try(self, node: ast.Try) -> None:
        self._visit_branches([*node.body, *node.orelse], [])
        for handler in node.handlers:
            self._visit_branches(handler.body, [])
        self._visit_all(node.finalbody)

    def visit_Match(self, node: ast.Match) -> None:
        self.visit(node.subject)
        for case in node.cases:
            self._visit_branches([case], [])

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.visit(node.values[0])
        self._visit_branches(node.values[1:], [])

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.visit(node.test)
        self._visit_branches([node.body], [node.orelse])

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._visit_function(node.args, [*node.body], node.returns)
        self._assigned.add(node.name)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._visit_function(node.args, [node.body], None)

    def _visit_function(
        self, arguments: ast.arguments, body: list[Any], returns: ast.expr | None
    ) -> None:
        defaults = [default for default in arguments.kw_defaults if default is not None]
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        every += [argument for argument in (arguments.vararg, arguments.kwarg) if argument]
        annotations = [argument.annotation for argument in every if argument.annotation]
        self._visit_all(
            [*arguments.defaults, *defaults, *annotations, *([returns] if returns else [])]
        )
        before = set(self._assigned)
        self._assigned |= {argument.arg for argument in every}
        self._visit_all(body)
        self._assigned = before

    def _visit_comprehension(self, node: Any) -> None:
        before = set(self._assigned)
        for generator in node.generators:
            self._visit_all([generator.iter, generator.target, *generator.ifs])
        results = (getattr(node, field, None) for field in ("key", "value", "elt"))
        self._visit_all([result for result in results if result])
        self._assigned = before

    def generic_visit(self, node: ast.AST) -> None:
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            self._visit_comprehension(node)
        else:
            super().generic_visit(node)

    def _visit_branches(self, first: Iterable[ast.AST], second: Iterable[ast.AST]) -> None:
        """Visit two alternatives; only what both assign counts as assigned afterwards."""
        before = set(self._assigned)
        self._visit_all(first)
        after_first, self._assigned = self._assigned, before
        self._visit_all(second)
        self._assigned &= after_first

    def _visit_all(self, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)
