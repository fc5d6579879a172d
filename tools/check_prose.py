"""Check names and docstrings against the house style; `make lint` runs this.

Limits hold for each of the two groups of code, the packages and the tests, as a share of all their
names. `--list` lists what a limit counts.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("dejavu_cache", "client/dejavu_client", "service/dejavu_service", "migrations")

OPENINGS = frozenset(
    {
        "a",
        "an",
        "the",
        "what",
        "which",
        "how",
        "who",
        "whose",
        "where",
        "when",
        "why",
    }
)
"""First words that put something else before the subject."""

VAGUE = frozenset(
    {
        "each",
        "found",
        "held",
        "given",
        "told",
        "taken",
        "known",
        "kept",
        "place",
        "whole",
        "one",
        "two",
    }
)
"""Variables that do not say what they hold."""

IRREGULAR_PARTICIPLES = frozenset(
    {
        "begun",
        "bound",
        "built",
        "chosen",
        "done",
        "drawn",
        "found",
        "given",
        "gone",
        "grown",
        "held",
        "kept",
        "known",
        "laid",
        "left",
        "lost",
        "made",
        "meant",
        "met",
        "said",
        "seen",
        "sent",
        "shown",
        "spent",
        "spread",
        "stood",
        "taken",
        "thrown",
        "told",
        "written",
    }
)

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class Occurrence(NamedTuple):
    """A name or a docstring, and where it stands."""

    path: Path
    line: int
    text: str


class Rule(NamedTuple):
    """A property of occurrences, and the largest share of them that may have it."""

    title: str
    occurrences: Callable[[Path, Sequence[ast.AST]], Iterator[Occurrence]]
    offends: Callable[[str], bool]
    limit: float


def function_docstrings(path: Path, nodes: Sequence[ast.AST]) -> Iterator[Occurrence]:
    """Yield the first line of each function's docstring."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node):
            yield Occurrence(path, node.lineno, (ast.get_docstring(node) or "").splitlines()[0])


def function_names(path: Path, nodes: Sequence[ast.AST]) -> Iterator[Occurrence]:
    """Yield the name of each function."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Occurrence(path, node.lineno, node.name)


def variables(path: Path, nodes: Sequence[ast.AST]) -> Iterator[Occurrence]:
    """Yield each variable and parameter where it is bound."""
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield Occurrence(path, node.lineno, node.id)
        elif isinstance(node, ast.arg):
            yield Occurrence(path, node.lineno, node.arg)


def nested_comprehensions(path: Path, nodes: Sequence[ast.AST]) -> Iterator[Occurrence]:
    """Yield each comprehension that holds a comprehension that holds a third one."""
    for node in nodes:
        if isinstance(node, COMPREHENSIONS) and _comprehension_depth(node) > 2:
            yield Occurrence(path, node.lineno, ast.unparse(node)[:80])


def conditional_values(path: Path, nodes: Sequence[ast.AST]) -> Iterator[Occurrence]:
    """Yield each value written as `a and b or c`; a condition may be."""
    for node in nodes:
        for value in _values_of(node):
            if isinstance(value, ast.BoolOp) and isinstance(value.op, ast.Or):
                first = value.values[0]
                if isinstance(first, ast.BoolOp) and isinstance(first.op, ast.And):
                    yield Occurrence(path, value.lineno, ast.unparse(value)[:80])


def is_participle(name: str) -> bool:
    """Return whether a name is a participle and nothing else."""
    word = name.strip("_")
    if "_" in word or name.startswith("__"):
        return False
    return word in IRREGULAR_PARTICIPLES or bool(re.fullmatch(r"[a-z]{2,}(ed|ing)", word))


def opens_badly(docstring: str) -> bool:
    """Return whether a docstring begins with an article or a question word."""
    first = re.match(r"\W*(\w+)", docstring)
    return first is not None and first.group(1).lower() in OPENINGS


RULES = (
    Rule(
        "docstrings that open with an article or a question word",
        function_docstrings,
        opens_badly,
        0.05,
    ),
    Rule("functions named by a participle alone", function_names, is_participle, 0.01),
    Rule("variables that do not say what they hold", variables, lambda name: name in VAGUE, 0.01),
    Rule("comprehensions nested twice", nested_comprehensions, lambda _: True, 0.0),
    Rule("values written as `a and b or c`", conditional_values, lambda _: True, 0.0),
)


def _comprehension_depth(node: ast.AST) -> int:
    deepest = max((_comprehension_depth(child) for child in ast.iter_child_nodes(node)), default=0)
    return deepest + isinstance(node, COMPREHENSIONS)


def _values_of(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.Assign(value=value) | ast.NamedExpr(value=value) | ast.keyword(value=value):
            return [value]
        case ast.AnnAssign(value=ast.expr() as value):
            return [value]
        case ast.Call(args=args):
            return args
        case ast.FunctionDef(returns=returns) if returns and ast.unparse(returns) != "bool":
            return [
                item.value for item in ast.walk(node) if isinstance(item, ast.Return) and item.value
            ]
    return []


@cache
def parse(path: Path) -> list[ast.AST]:
    """Return all nodes of a file's syntax tree, outer ones first."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def check(title: str, folders: tuple[str, ...], show: bool) -> bool:
    """Print each rule's share in some folders, and return whether all are within their limits."""
    paths = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    nodes_by_path = {path: parse(path) for path in paths}
    passed = True
    for rule in RULES:
        occurrences = [
            item for path, nodes in nodes_by_path.items() for item in rule.occurrences(path, nodes)
        ]
        offenders = [item for item in occurrences if rule.offends(item.text)]
        share = len(offenders) / max(len(occurrences), 1)
        passed = passed and share <= rule.limit
        print(
            f"{title}: {share:6.2%} of {len(occurrences)} {rule.title} (at most {rule.limit:.0%})"
        )
        if show or share > rule.limit:
            for item in offenders:
                print(f"  {item.path.relative_to(ROOT)}:{item.line}: {item.text}")
    return passed


def repeated_class_names() -> list[str]:
    """Return the class names that are defined more than once in the packages."""
    names: Counter[str] = Counter()
    for folder in PACKAGES:
        for path in (ROOT / folder).rglob("*.py"):
            names.update(node.name for node in parse(path) if isinstance(node, ast.ClassDef))
    return sorted(name for name, count in names.items() if count > 1)


def main() -> int:
    """Check everything; return the exit status."""
    show = "--list" in sys.argv
    passed = check("packages", PACKAGES, show)
    passed = (
        check("tests and benchmarks", ("tests", "benchmarks", "records", "examples", "tools"), show)
        and passed
    )
    repeated = repeated_class_names()
    print(f"class names used more than once: {', '.join(repeated) or 'none'}")
    return 0 if passed and not repeated else 1


if __name__ == "__main__":
    sys.exit(main())
