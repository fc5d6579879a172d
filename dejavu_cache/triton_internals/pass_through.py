"""Functions around a launch that pass their arguments on unchanged, as those that log launches do.

Whatever else such a function reads, the kernel that it launches is the one it was asked for. A
function counts as one only where its text shows that it cannot change an argument.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from .syntax_names import Chain, chain_of, find_names_bound_by_statements

__all__ = ["find_pass_through"]


def find_pass_through(nodes: Sequence[ast.AST]) -> frozenset[Chain]:
    """Return the dotted names that a function calls with exactly its own arguments.

    It is empty unless the function does nothing else with its arguments than to look at some, and
    nothing else with what it calls.

    Args:
        nodes: all nodes of the function's tree.
    """
    function = next((node for node in nodes if isinstance(node, ast.FunctionDef)), None)
    if function is None or not (function.args.vararg and function.args.kwarg):
        return frozenset()
    if len(function.args.args) > 1 or function.args.posonlyargs or any(function.args.kw_defaults):
        return frozenset()
    calls = [node for node in nodes if isinstance(node, ast.Call) and _passes_on(node, function)]
    called = {chain: call for call in calls if (chain := chain_of(call.func))}
    own = _own_names(function)
    if own & set(find_names_bound_by_statements(nodes)):
        return frozenset()
    harmless = {id(node) for node in _names_looked_at(nodes, _self_of(function))}
    for call in calls:
        if chain_of(call.func):
            harmless.update(map(id, ast.walk(call)))
    targets = {chain[-1] for chain in called} | {"fn"}
    for node in nodes:
        if id(node) not in harmless and _interferes(node, function, own, targets):
            return frozenset()
    return frozenset(called)


def _own_names(function: ast.FunctionDef) -> set[str]:
    arguments = function.args
    every = [*arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    return {argument.arg for argument in every if argument}


def _self_of(function: ast.FunctionDef) -> str | None:
    return next((argument.arg for argument in function.args.args), None)


def _passes_on(call: ast.Call, function: ast.FunctionDef) -> bool:
    """Return whether a call has exactly the arguments of a function, but for its `self`."""
    arguments = function.args
    assert arguments.vararg
    assert arguments.kwarg
    expected: dict[str | None, str] = {name.arg: name.arg for name in arguments.kwonlyargs}
    given = {keyword.arg: _name(keyword.value) for keyword in call.keywords}
    return (
        [ast.dump(argument) for argument in call.args]
        == [ast.dump(ast.Starred(ast.Name(arguments.vararg.arg, ast.Load()), ast.Load()))]
        and len(call.keywords) == len(given)
        and given == {**expected, None: arguments.kwarg.arg}
    )


def _name(node: ast.AST) -> str | None:
    return node.id if isinstance(node, ast.Name) else None


def _names_looked_at(nodes: Sequence[ast.AST], own_self: str | None) -> Iterator[ast.AST]:
    """Yield the names of which a part is read: `kwargs["B"]`, `kwargs.get("B")`, `"B" in kwargs`.

    So is the `self` of an attribute.
    """
    for node in nodes:
        looked_at: list[ast.expr] = []
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            looked_at = [node.value]
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
            looked_at = node.comparators
        elif isinstance(node, ast.Attribute) and (
            node.attr == "get" or _name(node.value) == own_self
        ):
            looked_at = [node.value]
        yield from (name for name in looked_at if isinstance(name, ast.Name))


def _interferes(node: ast.AST, function: ast.FunctionDef, own: set[str], targets: set[str]) -> bool:
    """Return whether a node may change an argument, or launch with others."""
    if isinstance(node, ast.Name):
        return node.id in own or node.id in targets
    if isinstance(node, ast.Attribute):
        return node.attr in targets or node.attr in ("__dict__", "__class__")
    if isinstance(node, ast.Constant):
        return node.value in targets  # for `getattr`
    if isinstance(node, ast.Call):  # a method may do what the function itself does not
        method, own_self = node.func, _self_of(function)
        owner = _name(method.value) if isinstance(method, ast.Attribute) else None
        return owner is not None and owner == own_self
    inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
    return node is not function and isinstance(node, inner)
