"""Importing the library is light, and it works where Triton is not installed."""

from __future__ import annotations

import ast
import importlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes import run_python
from support.records import context, record

from dejavu_cache.stores import FileStore

ATTENTION = "dejavu_cache.attention"
ROOT = Path(__file__).parent.parent
SCRIPTS = sorted(
    path for folder in ("benchmarks", "tools") for path in (ROOT / folder).rglob("*.py")
)
OWN = ("dejavu_cache", "dejavu_client", "dejavu_service", "programs", "support")
"""Packages of the project that scripts outside of the tests import."""


def test_importing_the_library_loads_nothing_heavy() -> None:
    code = """
        import json, sys
        import dejavu_cache
        heavy = ("torch", "triton", "httpx", "sqlalchemy", "pydantic")
        print(json.dumps([name for name in heavy if name in sys.modules]))
    """
    assert json.loads(run_python(code).stdout) == []


def test_decorating_a_kernel_loads_no_torch() -> None:
    code = """
        import sys
        from dejavu_cache import cached_autotune, install, serving
        print("torch" in sys.modules)
    """
    assert run_python(code, TRITON_INTERPRET="").stdout == "False\n"


def test_records_and_stores_need_no_triton() -> None:
    code = """
        import sys
        for name in ("torch", "triton", "httpx", "sqlalchemy"):
            sys.modules[name] = None
        import dejavu_cache, dejavu_cache.model.record, dejavu_cache.model.selection
        from dejavu_cache import Pow2, Settings, open_store
        import dejavu_cache.sweep.hosts, dejavu_cache.sweep.runner, dejavu_cache.sweep.suite
        assert list(open_store("memory://").contexts()) == []
    """
    run_python(code)


def test_every_public_name_is_there() -> None:
    import dejavu_cache

    for name in dejavu_cache.__all__:
        assert getattr(dejavu_cache, name) is not None
    assert set(dir(dejavu_cache)) >= set(dejavu_cache.__all__)


def imported_names(script: Path) -> Iterator[tuple[str, str]]:
    """Yield the modules of the project from which a script imports, and the names."""
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in OWN:
            yield from ((str(node.module), alias.name) for alias in node.names)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_script_imports_of_the_project_is_there(script: Path) -> None:
    """Nothing else runs the benchmarks where there is no GPU."""
    for module, name in imported_names(script):
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
