"""Commands on a folder in which another user has written say what they could not read or write."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes import fork_python
from support.records import context, record

from dejavu_cache.stores import FileStore

AS_ANOTHER_USER = """
    import os, sys
    from support.command_line import run_cli
    run_cli(*sys.argv[1:])  # imports what another user may not be able to
    if os.getuid() == 0:
        os.setuid(65534)
    os.environ["XDG_CACHE_HOME"] = os.environ["HOME"] = "/nonexistent"
    seen = run_cli(*sys.argv[1:])
    print(seen.returncode, seen.stdout, seen.stderr)
"""


@pytest.fixture
def store() -> Iterator[FileStore]:
    """Make a store that anybody may write to, where others can enter, unlike pytest's folder."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    store = FileStore(folder / "store")
    store.put(context(), [record(16)])
    store.root.chmod(0o777)
    yield store
    for path in [store.root, *store.root.rglob("*")]:
        path.chmod(0o755)
    shutil.rmtree(folder)


def close(store: FileStore, mode: int) -> None:
    """Leave others these rights to what the first user has put into the folder."""
    for parent, folders, files in os.walk(store.root, topdown=False):
        for name in [*folders, *files]:
            Path(parent, name).chmod(mode)


def run_as_another(*arguments: object) -> str:
    return fork_python(AS_ANOTHER_USER, *map(str, arguments)).stdout


@pytest.mark.parametrize("command", ["ls", "gc --all --yes", "export", "show add"])
def test_a_folder_that_cannot_be_entered_is_not_called_empty(
    command: str, store: FileStore
) -> None:
    close(store, 0)
    said = run_as_another(*command.split(), "--store", store.root)
    assert said.startswith("3 "), said
    assert "Permission denied" in said


def test_a_folder_that_cannot_be_entered_beside_others_is_named(store: FileStore) -> None:
    store.put(context(kernel="pkg.other"), [record(16)])
    (store.root / "pkg.other").chmod(0)
    said = run_as_another("ls", "--store", store.root)
    assert said.startswith("0 "), said
    assert "pkg.kernels.add" in said
    assert "pkg.other cannot be read: " in said
    assert run_as_another("export", "--store", store.root).startswith("3 ")


def test_doctor_finds_what_cannot_be_entered(store: FileStore) -> None:
    store.root.chmod(0o700)
    said = run_as_another("doctor", "--store", store.root)
    assert said.startswith("1 "), said
    assert "give this user access to it" in said
    assert "readable" not in said


def test_doctor_finds_what_cannot_be_written(store: FileStore) -> None:
    close(store, 0o555)
    said = run_as_another("doctor", "--store", store.root)
    assert said.startswith("1 "), said
    assert "is another user's" in said
