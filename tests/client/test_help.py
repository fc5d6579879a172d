"""Help and completion: every command in a group, with examples that parse, in 80 columns."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from dejavu_client.cli.help_texts import EXAMPLES, GROUPS
from dejavu_client.cli.main import all_commands
from support.command_line import run_cli
from support.processes import ROOT


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


def test_an_interrupted_command_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dejavu_client.cli.commands.look.open_existing_store", interrupt)
    assert run_cli("ls").returncode == 130


@pytest.mark.parametrize("words", [[], ["quarantine"]])
def test_without_a_command_the_help_is_no_error_message(words: list[str]) -> None:
    done = run_cli(*words)
    assert done.returncode == 2
    assert done.stderr.startswith("Usage: dejavu-cache")
