"""Rules of the architecture: where Triton's private modules are touched, and names of classes."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from support.processes import ROOT

INTERNALS = ROOT / "dejavu_cache" / "triton_internals"
HOOKS = INTERNALS / "hooks.py"
SOURCES = sorted(
    path
    for package in ("dejavu_cache", "client/dejavu_client", "service/dejavu_service")
    for path in (ROOT / package).rglob("*.py")
)

PUBLIC = re.compile(
    r"triton\.(language|experimental\.gluon)(\.[a-zA-Z]\w*)*|triton\.experimental"
    r"|triton(\.(Config|__version__|autotune|cdiv|compile|heuristics|jit|next_power_of_2))?"
)
"""What Triton's documentation names."""


@cache
def parse(path: Path) -> ast.Module:
    """Return a source file's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"))


def imported_names(tree: ast.Module) -> dict[str, str]:
    """Return what each absolute import of Triton's modules binds, by its local name."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name.split(".")[0]: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    return {name: origin for name, origin in names.items() if origin.split(".")[0] == "triton"}


def private_uses(tree: ast.Module) -> list[str]:
    """Return a module's uses of what Triton's documentation does not name."""
    names = imported_names(tree)
    used = {*names.values()}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and names.get(ast.unparse(node.value)) == "triton":
            used.add(f"triton.{node.attr}")
    return sorted(name for name in used if not PUBLIC.fullmatch(name))


def global_assignments(tree: ast.Module) -> list[str]:
    """Return a module's assignments to attributes of what is Triton's."""
    theirs = {*imported_names(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").endswith("versions"):
            theirs |= {alias.asname or alias.name for alias in node.names}
    found = []
    for node in ast.walk(tree):
        text = ast.unparse(node) if isinstance(node, ast.Attribute | ast.Call) else ""
        changed = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del)
        called = re.match(r"(?:setattr|delattr)\((\w+)|driver\.(set_active)\(", text)
        name = text.split(".")[0] if changed else called and (called[1] or called[2])
        if name in theirs or name == "set_active":
            found.append(text)
    return found


def test_private_modules_of_triton_are_used_in_triton_internals_alone() -> None:
    uses = {path: private_uses(parse(path)) for path in SOURCES if INTERNALS not in path.parents}
    assert {path: names for path, names in uses.items() if names} == {}


def test_globals_of_triton_are_assigned_in_hooks_alone() -> None:
    assignments = {path: global_assignments(parse(path)) for path in SOURCES if path != HOOKS}
    assert {path: targets for path, targets in assignments.items() if targets} == {}
    assert global_assignments(parse(HOOKS))


@pytest.mark.parametrize(
    ("source", "is_private", "is_assigned"),
    [
        ("import triton.runtime", True, False),
        ("from triton.experimental.gluon._runtime import GluonASTSource", True, False),
        ("def f():\n    from triton.runtime import driver", True, False),
        ("import triton as t\nt.knobs.runtime.debug", True, False),
        ("import triton\ntriton.autotune = None", False, True),
        ("from triton import knobs\ndel knobs.cache.dir", True, True),
        ("from ..triton_internals.versions import Autotuner\nAutotuner.run = None", False, True),
        ("from .versions import Autotuner\nsetattr(Autotuner, 'run', None)", False, True),
        ("from .versions import driver\ndriver.set_active(None)", False, True),
        ("import triton\n@triton.jit\ndef kernel(): ...\ntriton.Config({})", False, False),
        ("import triton.language as tl\ntl.dtype", False, False),
        ("from triton.experimental.gluon.nvidia.hopper import TensorDescriptor", False, False),
    ],
)
def test_what_a_source_does_to_triton_is_seen(
    source: str, is_private: bool, is_assigned: bool
) -> None:
    tree = ast.parse(source)
    assert (bool(private_uses(tree)), bool(global_assignments(tree))) == (is_private, is_assigned)


def test_a_class_name_is_used_once() -> None:
    places: dict[str, list[str]] = {}
    for path in SOURCES:
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(f"{path}:{node.lineno}")
    assert {name: lines for name, lines in places.items() if len(lines) > 1} == {}
