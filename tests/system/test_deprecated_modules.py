"""Former module names keep working, and warn."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import dejavu_client
import dejavu_service
import pytest
from support.processes import run_python

from dejavu_cache.system.deprecated_modules import LIBRARY_MOVES, RENAMED_NAMES
from dejavu_cache.triton_internals.versions import GLUON_IS_COVERED

MOVES = [
    (f"{package}.{former}", [f"{package}.{target}" for target in targets.split()])
    for package, moves in (
        ("dejavu_cache", LIBRARY_MOVES),
        ("dejavu_client", dejavu_client._MOVES),
        ("dejavu_service", dejavu_service._MOVES),
    )
    for former, targets in moves.items()
]


@pytest.fixture
def import_former() -> Iterator[Any]:
    """Import a former module anew, and forget it afterwards."""
    before = set(sys.modules)

    def load(name: str) -> Any:
        with pytest.warns(DeprecationWarning, match="has moved"):
            return importlib.import_module(name)

    yield load
    for name in [name for name, _ in MOVES if name not in before]:
        sys.modules.pop(name, None)


@pytest.mark.parametrize(("former", "targets"), MOVES)
def test_a_former_module_has_the_names_of_the_present_ones(
    former: str, targets: list[str], import_former: Any
) -> None:
    if former.endswith("sweep.cluster"):
        pytest.importorskip("ray")
    if former.endswith("attention.hopper_kernel") and not GLUON_IS_COVERED:
        pytest.skip("the kernel's module needs another Triton")
    module = import_former(former)
    for target in targets:
        present = importlib.import_module(target)
        for name in getattr(present, "__all__", ()):
            assert getattr(module, name) is getattr(present, name)
    for name in RENAMED_NAMES.get(former, {}):
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = module.no_such_name


def test_records_is_the_union_of_its_successors(import_former: Any) -> None:
    records = import_former("dejavu_cache.records")
    assert records.Scenario.__module__ == "dejavu_cache.model.scenario"
    assert records.Launch.__name__ == "RecordedLaunch"
    assert {"Config", "Record", "merge_records"} <= set(records.__all__)


def test_the_former_installation_module_still_exports_install() -> None:
    from dejavu_cache import installation

    with pytest.warns(DeprecationWarning, match="autotune_replacement"):
        assert installation.install.__name__ == "install"


def test_the_warning_names_the_importing_line() -> None:
    code = "import dejavu_cache.graphs"
    run = subprocess.run(
        [sys.executable, "-W", "always::DeprecationWarning:__main__", "-c", code],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "dejavu_cache.graphs has moved: import dejavu_cache.runtime.graphs" in run.stderr


def test_an_unknown_module_is_unknown() -> None:
    run_python(
        """
        import dejavu_cache
        try:
            import dejavu_cache.nowhere
        except ModuleNotFoundError as error:
            assert error.name == "dejavu_cache.nowhere"
        else:
            raise AssertionError
        """
    )
