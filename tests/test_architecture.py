"""Rules of the architecture: where Triton's private modules are touched, and names of classes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
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

PUBLIC_MODULES = ("triton.language", "triton.experimental.gluon")
PUBLIC_NAMES = frozenset(
    {"Config", "__version__", "autotune", "cdiv", "compile", "heuristics", "jit", "language"}
    | {"next_power_of_2"}
)
"""What Triton's documentation says of `triton` itself."""


def is_public(name: str) -> bool:
    """Return whether a dotted name is part of Triton's documented interface, or not Triton's."""
    top, *parts = name.split(".")
    if top != "triton" or not parts or name in ("triton.experimental", *PUBLIC_MODULES):
        return True
    if any(name.startswith(f"{module}.") for module in PUBLIC_MODULES):
        return not any(part.startswith("_") for part in parts)
    return parts[0] in PUBLIC_NAMES


def imported_names(tree: ast.Module) -> dict[str, str]:
    """Return the dotted name behind each local name that an absolute import binds."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                names[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def upstream_names(tree: ast.Module) -> set[str]:
    """Return the local names of Triton's objects that come through `triton_internals.versions`."""
    return {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").endswith("versions")
        for alias in node.names
    }


def dotted_name(node: ast.AST) -> str:
    """Return `a.b.c` for an attribute of an attribute of a name, or an empty string."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.insert(0, node.attr)
        node = node.value
    return ".".join([node.id, *parts]) if isinstance(node, ast.Name) else ""


def triton_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and dotted name of whatever a module imports from Triton or reads of it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
    names = imported_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            local, _, rest = dotted_name(node).partition(".")
            if names.get(local) == "triton":
                yield node.lineno, f"triton.{rest}"


def global_assignments(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each assignment to an attribute of something of Triton's."""
    imported = imported_names(tree)
    theirs = {name for name, origin in imported.items() if origin.split(".")[0] == "triton"}
    theirs |= upstream_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            target = dotted_name(node)
        elif isinstance(node, ast.Call) and dotted_name(node.func) in (
            "setattr",
            "delattr",
            "driver.set_active",
        ):
            target = dotted_name(node.args[0]) or dotted_name(node.func)
        else:
            continue
        if target.partition(".")[0] in theirs or target == "driver.set_active":
            yield node.lineno, target


def private_uses(tree: ast.Module) -> list[tuple[int, str]]:
    """Return the lines and dotted names of a module's uses of Triton's private modules."""
    return [(line, name) for line, name in triton_names(tree) if not is_public(name)]


@cache
def parse(path: Path) -> ast.Module:
    """Return a source file's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"))


def test_private_modules_of_triton_are_used_in_triton_internals_alone() -> None:
    uses = {
        str(path): private_uses(parse(path)) for path in SOURCES if INTERNALS not in path.parents
    }
    assert {path: names for path, names in uses.items() if names} == {}


def test_globals_of_triton_are_assigned_in_hooks_alone() -> None:
    assignments = {
        str(path): list(global_assignments(parse(path))) for path in SOURCES if path != HOOKS
    }
    assert {path: targets for path, targets in assignments.items() if targets} == {}
    assert list(global_assignments(parse(HOOKS)))


@pytest.mark.parametrize(
    "source",
    [
        "import triton.runtime",
        "from triton import knobs",
        "from triton.compiler.compiler import make_backend",
        "from triton._C.libtriton import get_cache_invalidating_env_vars",
        "from triton.experimental.gluon._runtime import GluonASTSource",
        "def f():\n    from triton.runtime import driver",
        "import triton\ntriton.knobs.runtime.debug",
        "import triton as t\nt.runtime.driver",
    ],
)
def test_a_private_use_is_found(source: str) -> None:
    assert private_uses(ast.parse(source))


@pytest.mark.parametrize(
    "source",
    [
        "import triton\ntriton.autotune = None",
        "from triton import knobs\nknobs.cache.dir = ''",
        "from ..triton_internals.versions import Autotuner\nAutotuner.run = None",
        "from ..triton_internals.versions import Autotuner\nsetattr(Autotuner, 'run', None)",
        "from ..triton_internals.versions import driver\ndriver.set_active(None)",
        "from triton import knobs\ndel knobs.cache.dir",
    ],
)
def test_an_assignment_to_a_global_is_found(source: str) -> None:
    assert list(global_assignments(ast.parse(source)))


@pytest.mark.parametrize(
    "source",
    [
        "import triton\n@triton.jit\ndef kernel(): ...\ntriton.Config({})",
        "import triton.language as tl\ntl.dtype",
        "from triton.experimental import gluon\nfrom triton.experimental.gluon import language",
        "from triton.experimental.gluon.nvidia.hopper import TensorDescriptor",
    ],
)
def test_the_public_interface_is_free_for_all(source: str) -> None:
    tree = ast.parse(source)
    assert private_uses(tree) == []
    assert list(global_assignments(tree)) == []


def test_a_class_name_is_used_once() -> None:
    places: dict[str, list[str]] = {}
    for path in SOURCES:
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(f"{path}:{node.lineno}")
    assert {name: lines for name, lines in places.items() if len(lines) > 1} == {}
