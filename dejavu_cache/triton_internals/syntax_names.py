"""The names in the syntax tree of a function: what it binds, reads, imports and changes."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ..errors import UnreadableKernelError

__all__ = [
    "ANY_ATTRIBUTE",
    "Chain",
    "Import",
    "annotations_of",
    "chain_of",
    "find_bare_names",
    "find_bound_names",
    "find_changed_names",
    "find_fetched_names",
    "find_imports",
    "find_mutated_names",
    "find_names_bound_by_statements",
    "find_names_read_first",
    "find_reflection",
    "nodes_of_body",
]

Chain = tuple[str, ...]
"""A dotted name: `("tl", "load")` for `tl.load`."""

Import = tuple[str, str, str, int]
"""An import inside a function: the name that it binds, the module, what is taken from it (empty
for the module itself, or `as` for a submodule under a name of its own), and the leading dots."""

ANY_ATTRIBUTE = "*"
"""Last part of a dotted name whose attribute is computed at run time, or only tested for by
`hasattr`."""


def find_bound_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the parameters, and the names that are assigned."""
    for node in nodes:
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id


def find_names_bound_by_statements(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the names that imports, nested functions and classes, `except` and `case` bind."""
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


def find_imports(nodes: Iterable[ast.AST]) -> Iterator[Import]:
    """Yield the imports."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                yield alias.asname or top, alias.name, "as" if alias.asname else "", 0
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, node.module or "", alias.name, node.level


def find_fetched_names(nodes: Iterable[ast.AST]) -> Iterator[Chain]:
    """Yield the dotted names that `getattr` and `hasattr` ask for."""
    for node in nodes:
        if not isinstance(node, ast.Call) or len(node.args) < 2:
            continue
        if isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
            owner, name = chain_of(node.args[0]), node.args[1]
            if owner:
                known = str(name.value) if isinstance(name, ast.Constant) else ANY_ATTRIBUTE
                yield *owner, known if node.func.id == "getattr" else ANY_ATTRIBUTE


_MUTATING_METHODS = frozenset(
    {"add", "append", "appendleft", "clear", "difference_update", "discard", "extend"}
    | {"extendleft", "insert", "intersection_update", "move_to_end", "pop", "popitem", "popleft"}
    | {"remove", "reverse", "rotate", "setdefault", "sort", "symmetric_difference_update"}
    | {"update", "__delitem__", "__ior__", "__setattr__", "__setitem__"}
)


def find_changed_names(nodes: Sequence[ast.AST]) -> set[Chain]:
    """Return the dotted names of which an item or an attribute is assigned or deleted."""
    return _with_aliased_names(_find_changed_owners(nodes), nodes)


def _find_changed_owners(nodes: Iterable[ast.AST]) -> Iterator[Chain]:
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


def find_mutated_names(nodes: Sequence[ast.AST]) -> set[Chain]:
    """Return the dotted names on which a method is called that changes containers."""
    methods = (node for node in nodes if isinstance(node, ast.Attribute))
    owners = (_owner(node.value) for node in methods if node.attr in _MUTATING_METHODS)
    return _with_aliased_names((chain for chain in owners if chain), nodes)


def _owner(node: ast.AST) -> Chain | None:
    """Return the dotted name of an object in which a part is found by subscripts."""
    names: list[str] = []
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.NamedExpr)):
        if not isinstance(node, ast.NamedExpr):
            names = [node.attr, *names] if isinstance(node, ast.Attribute) else []
        node = node.value
    return (node.id, *names) if isinstance(node, ast.Name) else None


def _with_aliased_names(chains: Iterable[Chain], nodes: Iterable[ast.AST]) -> set[Chain]:
    """Return dotted names, and those that begin with what a name of theirs may stand for.

    Raises:
        UnreadableKernelError: there are too many ways in which names stand for others.
    """
    aliases = set(_find_aliases(nodes))
    # An assignment is followed once on each way: one of a name to a part of itself has no end.
    pending = [(chain, aliases) for chain in chains]
    found = set[Chain]()
    for _ in range(_MOST_WAYS):
        if not pending:
            return found
        chain, unfollowed = pending.pop()
        found.add(chain)
        for alias in unfollowed:
            name, owner = alias
            if name == chain[0]:
                pending.append(((*owner, *chain[1:]), unfollowed - {alias}))
    raise UnreadableKernelError(
        "code that a kernel reads changes a value under names that it assigns to each other in "
        f"over {_MOST_WAYS} ways: name what it changes"
    )


_MOST_WAYS = 1000


def _find_aliases(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, Chain]]:
    """Yield the names that are assigned, each with the dotted name of what it may be or be in."""
    for node in nodes:
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value:
            targets, value = [node.target], node.value
        elif isinstance(node, (ast.For, ast.comprehension)):
            targets, value = [node.target], node.iter
        else:
            continue
        owners = [owner for part in _alternatives(value) if (owner := _owner(part))]
        for target in targets:
            if isinstance(target, ast.Name):
                yield from ((target.id, owner) for owner in owners)


def _alternatives(value: ast.expr) -> Iterator[ast.expr]:
    """Yield the expressions of which one is the value of another: those of `a or b`."""
    if isinstance(value, ast.BoolOp):
        parts = value.values
    elif isinstance(value, ast.IfExp):
        parts = [value.body, value.orelse]
    else:
        yield value
        return
    for part in parts:
        yield from _alternatives(part)


_REFLECTION = frozenset(
    {"__builtins__", "__code__", "__doc__", "__firstlineno__", "__globals__", "__module__"}
    | {"__subclasses__", "__traceback__", "ag_frame", "cr_frame", "gi_frame"}
)
_REFLECTION_OF_JIT_FUNCTIONS = frozenset({"cache_key", "raw_src", "starting_line_number"})


def find_reflection(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the attributes that are read and that show more of an object than its hash has."""
    for node in nodes:
        if isinstance(node, ast.Attribute):
            if node.attr in _REFLECTION | _REFLECTION_OF_JIT_FUNCTIONS:
                yield node.attr
        elif isinstance(node, ast.Constant) and node.value in _REFLECTION:
            yield node.value  # for `getattr`


def nodes_of_body(nodes: Iterable[ast.AST]) -> list[ast.AST]:
    """Return the nodes in the body of the first function, or none where there is no function."""
    kinds = (ast.FunctionDef, ast.Lambda)
    definition = next((node for node in nodes if isinstance(node, kinds)), None)
    if definition is None:
        return []
    body = definition.body if isinstance(definition, ast.FunctionDef) else [definition.body]
    return [inner for node in body for inner in ast.walk(node)]


def find_bare_names(nodes: Sequence[ast.AST]) -> Iterator[Chain]:
    """Yield the dotted names of which no attribute is read."""
    inner = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    for node in nodes:
        if id(node) not in inner and (chain := chain_of(node)):
            yield chain


def annotations_of(nodes: Iterable[ast.AST]) -> dict[str, str]:
    """Return the annotations of the first function's parameters, by name."""
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


def chain_of(node: ast.AST) -> Chain | None:
    """Return the dotted name that a node reads, or None."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return (node.id, *names) if isinstance(node, ast.Name) else None


def find_names_read_first(tree: ast.AST) -> set[str]:
    """Return the names that a function may read before it assigns them."""
    finder = _ReadsFinder()
    finder.visit(tree)
    return finder.read_first


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

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._visit_function(node.args, [*node.body], node.returns)
        self._assigned.add(node.name)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._visit_all([*node.decorator_list, *node.bases, *node.keywords])
        before = self._assigned
        for statement in node.body:  # its names are not those of the methods, nor of the function
            self._assigned = set(before)
            self.visit(statement)
        self._assigned = before | {node.name}

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
