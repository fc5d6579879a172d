"""Edits of a module's text: harmless ones, and ones that may change its kernel's code."""

import ast
import random
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple


class Edit(NamedTuple):
    """A module's new text.

    Attributes:
        kind: what was done.
        text: the module afterwards.
        file: the name of the file that it is in.
    """

    kind: str
    text: str
    file: str = "kernels.py"


def harmless_edits(source: str, seed: int) -> Iterator[Edit]:
    """Yield edits that leave the kernel's code as it is."""
    chance = random.Random(seed)
    lines = source.splitlines()
    code = [
        index
        for index, line in enumerate(lines)
        if line.strip() and not line.lstrip().startswith(('"""', "#"))
    ]
    for index in code:
        indent = lines[index][: len(lines[index]) - len(lines[index].lstrip())]
        comment = f"{indent}# {chance.random()}"
        yield Edit("comment", _join_lines(lines[:index], [comment], lines[index:]))
        if lines[index].lstrip().startswith("def "):
            doc = f'{indent}    """Say {chance.random()}."""'
            yield Edit("docstring", _join_lines(lines[: index + 1], [doc], lines[index + 1 :]))
    yield Edit(
        "an unrelated function", f"{source}\ndef unrelated():\n    return {chance.random()}\n"
    )
    yield Edit("another file", source, f"renamed_{chance.randint(0, 9)}.py")
    yield Edit("unparsed", ast.unparse(ast.parse(source)))
    yield from _renamed_locals(source, chance)
    yield from _annotated(source)


def _renamed_locals(source: str, chance: random.Random) -> Iterator[Edit]:
    tree = ast.parse(source)
    module_names = {
        node.id for top in tree.body for node in ast.walk(top)
        if isinstance(node, ast.Name) and not isinstance(top, (ast.FunctionDef, ast.ClassDef))
    }  # fmt: skip
    for index, function in enumerate(ast.walk(tree)):
        if not isinstance(function, ast.FunctionDef):
            continue
        inner = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
        stored = {node.id for node in inner if isinstance(node.ctx, ast.Store)}
        for name in sorted(stored - module_names):
            changed, new = ast.parse(source), f"{name}_{chance.randint(0, 99)}"
            for node in ast.walk(list(ast.walk(changed))[index]):
                if isinstance(node, ast.Name) and node.id == name:
                    node.id = new
            yield Edit("renamed local", ast.unparse(changed))


def _annotated(source: str) -> Iterator[Edit]:
    for index, node in enumerate(ast.walk(ast.parse(source))):
        is_method_of_class = isinstance(node, ast.FunctionDef) and node.name.startswith("__")
        if isinstance(node, ast.FunctionDef) and not is_method_of_class:
            changed = ast.parse(source)
            function: Any = list(ast.walk(changed))[index]
            function.returns = ast.Name("object", ast.Load())
            yield Edit("type hint", ast.unparse(ast.fix_missing_locations(changed)))


def _join_lines(*parts: list[str]) -> str:
    return "\n".join(line for part in parts for line in part) + "\n"


_SWAPS = {
    ast.Add: (ast.Sub, ast.Mult), ast.Sub: (ast.Add, ast.Mult), ast.Mult: (ast.Add, ast.Sub),
    ast.Div: (ast.Mult, ast.Add), ast.Lt: (ast.LtE, ast.Gt), ast.Gt: (ast.GtE, ast.Lt),
}  # fmt: skip
_NAMES = {
    "exp": "sqrt", "max": "min", "sum": "max", "float16": "bfloat16", "float32": "float64",
    "static_range": "range", "TWICE": "THRICE", "LOW": "HIGH", "program_id": "num_programs",
}  # fmt: skip


def harmful_edits(source: str, seed: int) -> Iterator[Edit]:
    """Yield edits of every operator, constant, name, statement and decorator."""
    chance = random.Random(seed)
    for index, node in enumerate(ast.walk(ast.parse(source))):
        for kind, change in _changes(node, chance):
            tree = ast.parse(source)
            change(list(ast.walk(tree))[index])
            yield Edit(kind, ast.unparse(ast.fix_missing_locations(tree)))
    for option in ("noinline=True", "do_not_specialize=[0]", "debug=True",
                   "do_not_specialize_on_alignment=[0]"):  # fmt: skip
        for match in re.finditer(r"@triton\.jit\n", source):
            text = f"{source[: match.start()]}@triton.jit({option})\n{source[match.end() :]}"
            yield Edit(f"decorator {option}", text)


Change = Callable[[Any], None]


def _changes(node: ast.AST, chance: random.Random) -> Iterator[tuple[str, Change]]:
    if isinstance(node, ast.Constant):
        for value in _other_values(node.value, chance):
            yield "constant", _set_field("value", value)
    elif isinstance(node, (ast.BinOp, ast.AugAssign)):
        for operator in _SWAPS.get(type(node.op), ()):
            yield "operator", _set_field("op", operator())
    elif isinstance(node, ast.Compare):
        for operator in _SWAPS.get(type(node.ops[0]), ()):
            yield "comparison", _set_field("ops", [operator()])
    elif isinstance(node, ast.Attribute) and node.attr in _NAMES:
        yield "attribute", _set_field("attr", _NAMES[node.attr])
    elif isinstance(node, ast.Name) and node.id in _NAMES:
        yield "name", _set_field("id", _NAMES[node.id])
    elif isinstance(node, ast.If):
        negated = ast.UnaryOp(ast.Not(), node.test)
        yield "condition", _set_field("test", negated)
    elif isinstance(node, ast.FunctionDef) and len(node.body) > 1:
        for index in range(len(node.body)):
            yield "statement", _without_statement(index)
        yield "order", _first_statement_second
    elif isinstance(node, ast.Call) and len(node.args) > 1:
        yield "arguments", lambda found: found.args.reverse()
    elif isinstance(node, ast.Call) and node.keywords:
        yield "keyword", lambda found: found.keywords.pop()


def _set_field(field: str, value: object) -> Change:
    return lambda found: setattr(found, field, value)


def _without_statement(index: int) -> Change:
    return lambda found: found.body.pop(index)


def _first_statement_second(function: Any) -> None:
    function.body.insert(0, function.body.pop(1))


def _other_values(value: object, chance: random.Random) -> list[object]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value * 2 + 3, float(value), value + chance.randint(5, 90)]
    if isinstance(value, float):
        return [value + 1.0, -value, value * chance.uniform(1.5, 9.0)]
    return []
