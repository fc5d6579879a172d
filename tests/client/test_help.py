"""Help and completion: every command in a group, with examples that parse, in 80 columns."""

from __future__ import annotations

import shlex

import pytest
from dejavu_client.cli.help_texts import EXAMPLES, GROUPS
from support.command_line import list_commands, run_cli

COMMANDS = list_commands()


def test_every_command_has_a_group_and_an_example() -> None:
    groups = {name.split()[0] for name in COMMANDS}
    assert groups == {name for names in GROUPS.values() for name in names}
    assert set(COMMANDS) == set(EXAMPLES)


def test_every_example_parses() -> None:
    for name, examples in EXAMPLES.items():
        for example in examples:
            words = shlex.split(example)
            assert words[: len(name.split())] == name.split()
            COMMANDS[name].make_context(name, words[len(name.split()) :])


@pytest.mark.parametrize("columns", [80, 120])
def test_the_help_of_every_command_fits(columns: int) -> None:
    for name in ("", *COMMANDS):
        out = run_cli(*name.split(), "--help", columns=columns)
        assert (out.returncode, out.stderr) == (0, "")
        lines = out.stdout.splitlines()
        assert max(map(len, lines)) <= columns, name
        assert not [line for line in lines[1:] if line.endswith("...")], name
        assert not name or f"  dejavu-cache {EXAMPLES[name][0]}" in out.stdout


@pytest.mark.parametrize("words", [[], ["quarantine"]])
def test_without_a_command_the_help_is_no_error_message(words: list[str]) -> None:
    done = run_cli(*words)
    assert done.returncode == 2
    assert done.stderr.startswith("Usage: dejavu-cache")
