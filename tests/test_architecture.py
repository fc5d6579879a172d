"""Rules of the code: imports, assignments, and the list of slow tests."""

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from support.processes import ROOT, run_python
from support.records import context, record
from support.slow_list import read_slow_list

from dejavu_cache.stores import FileStore

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
    assert private_uses(parse(HOOKS))


def test_globals_of_triton_are_assigned_in_hooks_alone() -> None:
    assignments = {path: global_assignments(parse(path)) for path in SOURCES if path != HOOKS}
    assert {path: targets for path, targets in assignments.items() if targets} == {}
    assert global_assignments(parse(HOOKS))


def test_a_name_with_an_underscore_is_its_modules_own() -> None:
    private = [
        f"{path}:{node.lineno} {alias.name}"
        for path in SOURCES
        for node in ast.walk(parse(path))
        if isinstance(node, ast.ImportFrom) and (node.level or "dejavu" in str(node.module))
        for alias in node.names
        if alias.name.startswith("_") and alias.name != "__version__"
    ]
    assert private == []


def test_the_list_of_slow_tests_is_sorted_and_names_tests_that_exist() -> None:
    entries = read_slow_list()
    assert entries == sorted(set(entries))
    inherited = (ROOT / "dejavu_cache" / "testing.py").read_text(encoding="utf-8")
    for entry in entries:
        module, *classes, name = entry.split("::")
        text = (ROOT / module).read_text(encoding="utf-8")
        assert all(f"class {each}(" in text or f"class {each}:" in text for each in classes), entry
        text += inherited if classes else ""
        assert f"def {name}(" in text, f"{entry}: run `make slow-list`"


ATTENTION = "dejavu_cache.attention"
SCRIPTS = sorted(
    path for folder in ("benchmarks", "tools") for path in (ROOT / folder).rglob("*.py")
)
OWN = ("dejavu_cache", "dejavu_client", "dejavu_service", "programs", "support")
"""Packages of the project that scripts outside of the tests import."""


STORES = """
import dejavu_cache.model.record, dejavu_cache.model.selection
import dejavu_cache.sweep.hosts, dejavu_cache.sweep.runner, dejavu_cache.sweep.suite
from dejavu_cache import Pow2, Settings, open_store
assert list(open_store("memory://").contexts()) == []
"""


@pytest.mark.parametrize(
    ("imports", "unneeded"),
    [
        ("import dejavu_cache", "torch triton httpx sqlalchemy pydantic"),
        ("from dejavu_cache import cached_autotune, install, serving", "torch"),
        (STORES, "torch triton httpx sqlalchemy"),
    ],
    ids=["the library", "decorating a kernel", "records and stores"],
)
def test_nothing_heavy_is_imported_where_it_is_not_needed(imports: str, unneeded: str) -> None:
    code = f"{imports}\nimport sys\nprint(sys.modules.keys() & {set(unneeded.split())})"
    assert run_python(code, TRITON_INTERPRET="").stdout == "set()\n"


def project_imports(script: Path) -> Iterator[tuple[str, str]]:
    """Yield the modules of the project from which a script imports, and the names."""
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in OWN:
            yield from ((str(node.module), alias.name) for alias in node.names)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_script_imports_of_the_project_is_there(script: Path) -> None:
    """Nothing else runs the benchmarks where there is no GPU."""
    for module, name in project_imports(script):
        try:
            is_there = hasattr(importlib.import_module(module), name)
        except ImportError as error:
            if str(error.name).split(".")[0] in OWN:
                raise
            pytest.skip(f"{error.name} is not installed")
        if not is_there:
            importlib.import_module(f"{module}.{name}")


def test_a_triton_that_is_too_old_is_named(tmp_path: Path) -> None:
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton/__init__.py").write_text("__version__ = '3.5.1'\n")
    first = "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    message = "needs Triton 3.6 or later, and 3.5.1 is installed"
    code = first + "from dejavu_cache import cached_autotune"
    out = run_python(code, str(tmp_path), check=False)
    assert message in out.stderr
    code = first + "from dejavu_client.__main__ import main; main()"
    out = run_python(code, str(tmp_path), "doctor", check=False)
    assert (out.returncode, message in out.stdout) == (1, True), out.stdout
    store = tmp_path / "store"
    FileStore(store).put(context(), [record()])
    for command in (
        f"sweep {ATTENTION} --store {store}",
        f"prewarm json --device H200 --out {tmp_path / 'out'} --store {store}",
    ):  # fmt: skip
        out = run_python(code, str(tmp_path), *command.split(), check=False)
        lines = out.stderr.splitlines()
        assert (out.returncode, len(lines), message in lines[0]) == (2, 1, True), out
