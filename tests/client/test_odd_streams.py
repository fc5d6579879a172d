"""Commands say what they did, however they are started and wherever their output goes."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.checkout import environment
from support.command_line import run_cli
from support.processes import dejavu
from support.records import context, record

from dejavu_cache.stores import FileStore

NAME = "pkg.kernels.möbius☃"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Make a store with a kernel whose name is not ASCII."""
    FileStore(tmp_path / "store").put(context(kernel=NAME), [record(32)])
    return tmp_path / "store"


@pytest.mark.parametrize("command", ["ls", "ls --json", "export", "explain *bius*"])
def test_a_terminal_that_lacks_a_character_gets_the_rest(command: str, store: Path) -> None:
    seen = dejavu(*command.split(), "--store", store, PYTHONIOENCODING="ascii")
    assert seen.returncode == 0, seen.stderr
    if "--json" in command:
        assert json.loads(seen.stdout)[0]["kernel"] == NAME
    else:
        assert "bius" in seen.stdout


def test_an_export_is_read_again_whatever_the_locale_is(store: Path, tmp_path: Path) -> None:
    command = f"export --store {store} | {words()} import - --store {tmp_path / 'copy'}"
    seen = shell(command, LC_ALL="POSIX", PYTHONCOERCECLOCALE="0", PYTHONUTF8="0")
    assert (seen.returncode, seen.stderr) == (0, "")
    assert [context.kernel.name for context in FileStore(tmp_path / "copy").contexts()] == [NAME]


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("ls >&-", 0),
        ("ls 2>&-", 0),
        ("show nothing 2>&-", 1),
        ("import - <&-", 1),
        ("doctor <&-", 0),
    ],
)
def test_a_closed_stream_is_an_empty_one(command: str, code: int, store: Path) -> None:
    seen = shell(command, DEJAVU_CACHE_URL=str(store))
    assert (seen.returncode, "Traceback" in seen.stderr) == (code, False), seen.stderr


def test_a_working_directory_that_is_gone_is_named(tmp_path: Path) -> None:
    seen = subprocess.run(
        ["sh", "-c", f"mkdir gone && cd gone && rmdir ../gone && {words()} ls"],
        cwd=tmp_path,
        env=environment(DEJAVU_CACHE_URL="relative"),
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert (seen.returncode, "the working directory: " in seen.stderr) == (3, True), seen.stderr


@pytest.mark.parametrize("command", ["ls", "gc --yes", "gc", "show add", "pin add --config B=1"])
def test_a_store_of_which_nothing_can_be_read_is_not_called_empty(
    command: str, store: Path
) -> None:
    (file,) = store.rglob("*.json")
    file.write_text(file.read_text().replace('"format": ', '"format": 99', 1))
    seen = run_cli(*command.split(), "--store", store)
    assert (seen.returncode, "upgrade dejavu-cache" in seen.stderr) == (3, True), seen


def words() -> str:
    """Return the command by the name of its other module; `dejavu` runs it by the package's."""
    return f"{shlex.quote(sys.executable)} -m dejavu_client.cli.main"


def shell(command: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", f"{words()} {command}"],
        env=environment(**env),
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
