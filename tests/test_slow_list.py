"""The list of slow tests names tests that exist."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from support.processes import ROOT
from support.slow_list import read_slow_list

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def classes() -> dict[str, ast.ClassDef]:
    """Return the classes by name that others may inherit tests from, of the suite and for it."""
    paths = [*(ROOT / "tests").rglob("*.py"), ROOT / "dejavu_cache" / "testing.py"]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in paths]
    return {
        node.name: node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)
    }


def methods(node: ast.ClassDef) -> set[str]:
    """Return the functions of a class and of those that it inherits from."""
    names = {inner.name for inner in node.body if isinstance(inner, FUNCTIONS)}
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id in classes():
            names |= methods(classes()[base.id])
    return names


def functions(path: Path) -> set[str]:
    """Return the test functions of a module, those of a class as `Class::function`."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
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
