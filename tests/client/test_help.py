"""Help and completion: every command in a group, with examples that parse, in 80 columns."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from dejavu_client.cli.completion import complete_devices, complete_kernels, complete_namespaces
from dejavu_client.cli.help_texts import EXAMPLES, GROUPS
from dejavu_client.cli.main import all_commands
from support.command_line import run_cli
from support.processes import ROOT
from support.records import context, record

from dejavu_cache.settings import current_settings
from dejavu_cache.stores import FileStore


def commands_of(command: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the commands by their names, those of groups with the group's name."""
    for name, member in command.commands.items():
        if hasattr(member, "commands"):
            yield from commands_of(member, f"{prefix}{name} ")
        else:
            yield prefix + name, member


@pytest.fixture(scope="module")
def application() -> Any:
    return typer.main.get_command(all_commands())


def test_every_command_has_a_group_and_an_example(application: Any) -> None:
    commands = dict(commands_of(application))
    assert set(application.commands) == {name for names in GROUPS.values() for name in names}
    assert set(commands) == set(EXAMPLES)


def test_every_example_parses(application: Any) -> None:
    commands = dict(commands_of(application))
    for name, examples in EXAMPLES.items():
        for example in examples:
            words = shlex.split(example)
            assert words[: len(name.split())] == name.split()
            commands[name].make_context(name, words[len(name.split()) :])


@pytest.mark.parametrize("columns", [80, 120])
def test_the_help_of_every_command_fits(application: Any, columns: int) -> None:
    for name in ("", *dict(commands_of(application))):
        out = run_cli(*name.split(), "--help", columns=columns)
        assert (out.returncode, out.stderr) == (0, "")
        lines = out.stdout.splitlines()
        assert max(map(len, lines)) <= columns, name
        assert not [line for line in lines[1:] if line.endswith("...")], name
        assert not name or f"  dejavu-cache {EXAMPLES[name][0]}" in out.stdout


def test_the_documentation_has_every_command(application: Any) -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    table = page.partition("| command |")[2].partition("\n\n")[0]
    named = set(re.findall(r"`([a-z]+)[^`]*`", table))
    assert set(application.commands) <= named


class CompletionContext:
    """Context of a completion, of which only the parameters count."""

    def __init__(self, **params: object) -> None:
        self.params = params


@pytest.fixture
def completing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    store = FileStore(tmp_path)
    store.put(context(), [record(16)], now=True)
    store.put(context(kernel="other.matmul", device="NVIDIA B200"), [record(16)], now=True)
    monkeypatch.setenv("DEJAVU_CACHE_URL", str(tmp_path))
    current_settings.cache_clear()
    yield CompletionContext()
    current_settings.cache_clear()


def test_kernels_and_devices_are_completed_from_the_store(
    completing: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert complete_kernels(completing, "") == ["matmul", "add"]
    assert complete_kernels(completing, "ma") == ["matmul"]
    assert complete_kernels(completing, "pkg.k") == ["pkg.kernels.add"]
    assert complete_devices(completing, "h2") == ["NVIDIA H200"]
    shutil.rmtree(tmp_path)
    assert complete_kernels(completing, "") == []
    dead: Any = CompletionContext(store="gopher://x")
    assert complete_kernels(dead, "") == []


HOSTILE_NAMES = [
    "$(touch pwned)", "`touch pwned`", "\\$(touch pwned)", "a;touch pwned", "--store", "'", '"',
    "*", "a\u202eb",
]  # fmt: skip


@pytest.mark.parametrize("shell", ["complete_bash", "complete_zsh", "complete_fish"])
def test_a_name_that_a_shell_would_run_is_not_completed(
    shell: str, completing: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Candidates are evaluated by zsh, and become part of the line as they are in bash."""
    monkeypatch.setenv("_DEJAVU_CACHE_COMPLETE", shell)
    store = FileStore(tmp_path)
    for name in HOSTILE_NAMES:
        store.put(context(kernel=name, device=name), [record(16)], now=True)
    store.put(context(kernel="pkg.make.<locals>.inner"), [record(16)], now=True)
    quote = "\\" if shell == "complete_bash" else ""
    assert complete_kernels(completing, "") == ["matmul", "add", "inner"]
    inner = f"pkg.make.{quote}<locals{quote}>.inner"
    assert complete_kernels(completing, "pkg.") == ["pkg.kernels.add", inner]
    devices = [f"NVIDIA{quote} {model}" for model in ("B200", "H200")]
    assert complete_devices(completing, "") == devices


def test_namespaces_are_completed_from_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEJAVU_CACHE_URL", "https://tune.example.com?namespace=pr-7")
    current_settings.cache_clear()
    assert complete_namespaces(CompletionContext(), "") == ["main", "pr-7"]  # type: ignore[arg-type]
    assert complete_namespaces(CompletionContext(), "p") == ["pr-7"]  # type: ignore[arg-type]
    current_settings.cache_clear()


def test_a_shell_gets_candidates_alone(
    completing: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_DEJAVU_CACHE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "dejavu-cache show ad")
    monkeypatch.setenv("COMP_CWORD", "2")
    with pytest.raises(SystemExit):
        all_commands()([], prog_name="dejavu-cache", standalone_mode=False)
    assert capfd.readouterr().out.split() == ["add"]
    assert "_DEJAVU_CACHE_COMPLETE" in os.environ


def test_an_interrupted_command_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dejavu_client.cli.commands.look.open_existing_store", interrupt)
    assert run_cli("ls").returncode == 130


@pytest.mark.parametrize("words", [[], ["heuristics"]])
def test_without_a_command_the_help_is_no_error_message(words: list[str]) -> None:
    done = run_cli(*words)
    assert done.returncode == 2
    assert done.stderr.startswith("Usage: dejavu-cache")
