"""The list of slow tests names tests that exist."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from support.processes import ROOT
from support.slow_list import read_slow_list

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def class_named(name: str) -> ast.ClassDef | None:
    """Return a class that tests may inherit from, of the suite or for it."""
    for path in [*(ROOT / "tests").rglob("*.py"), ROOT / "dejavu_cache" / "testing.py"]:
        if f"class {name}" in path.read_text(encoding="utf-8"):
            for node in parse(path).body:
                if isinstance(node, ast.ClassDef) and node.name == name:
                    return node
    return None


def methods(node: ast.ClassDef) -> set[str]:
    """Return the functions of a class and of those that it inherits from."""
    names = {inner.name for inner in node.body if isinstance(inner, FUNCTIONS)}
    for base in node.bases:
        parent = class_named(base.id) if isinstance(base, ast.Name) else None
        names |= methods(parent) if parent else set()
    return names


@cache
def functions(path: Path) -> set[str]:
    """Return the test functions of a module, those of a class as `Class::function`."""
    names = set()
    for node in parse(path).body:
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}::{name}" for name in methods(node)}
        elif isinstance(node, FUNCTIONS):
            names.add(node.name)
    return names


def test_every_entry_is_a_test_that_exists() -> None:
    for entry in read_slow_list():
        module, _, name = entry.partition("::")
        assert name in functions(ROOT / module), f"{entry}: run `make slow-list`"


def test_the_list_is_sorted_and_has_no_entry_twice() -> None:
    entries = read_slow_list()
    assert entries == sorted(set(entries))
