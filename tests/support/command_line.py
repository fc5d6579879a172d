"""The command line in this process, which starts faster than a process of its own."""

import io
import os
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, NamedTuple
from unittest.mock import patch

import typer
from dejavu_client.cli.main import all_commands, run_command

from dejavu_cache.settings import current_settings


class CommandResult(NamedTuple):
    """Exit code and output of a command; colours are left out."""

    returncode: int
    stdout: str
    stderr: str


class Terminal(io.StringIO):
    """Text output that calls itself a terminal."""

    def isatty(self) -> bool:
        """Return True."""
        return True


def run_cli(*arguments: object, columns: int = 0, **env: str) -> CommandResult:
    """Run a command, as a user would.

    Args:
        *arguments: its words.
        columns: the width of the terminal that it writes to; 0: it writes to a pipe.
        **env: environment variables.
    """
    out, err = (Terminal(), Terminal()) if columns else (io.StringIO(), io.StringIO())
    if columns:
        env = {"COLUMNS": str(columns), "TERM": "xterm", **env}
    current_settings.cache_clear()
    try:
        with patch.dict(os.environ, env), redirect_stdout(out), redirect_stderr(err):
            code = run_command([str(argument) for argument in arguments])
    finally:
        current_settings.cache_clear()
    return CommandResult(int(code), *(without_colours(text.getvalue()) for text in (out, err)))


def list_commands() -> dict[str, Any]:
    """Return the commands that do something by their names, those of groups with the group's."""

    def walk(command: Any, name: str) -> Iterator[tuple[str, Any]]:
        for child, below in getattr(command, "commands", {}).items():
            yield from walk(below, f"{name} {child}".strip())
        if not hasattr(command, "commands"):
            yield name, command

    return dict(walk(typer.main.get_command(all_commands()), ""))


def without_colours(text: str) -> str:
    """Return text without a terminal's escape sequences."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


@contextmanager
def full_disk() -> Iterator[None]:
    """Let no file of this process grow beyond 64 bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
