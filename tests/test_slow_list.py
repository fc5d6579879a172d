"""The list of slow tests names tests that exist."""

from __future__ import annotations

import ast
from pathlib import Path

from support.processes import ROOT
from support.slow_list import read_slow_list

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def functions(path: Path) -> set[str]:
    """Return the test functions of a module, those of a class as `Class::function`."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            names |= {
                f"{node.name}::{inner.name}" for inner in node.body if isinstance(inner, FUNCTIONS)
            }
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
