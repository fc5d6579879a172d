"""`verify`: a check of what a program benchmarks and compiles."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from dejavu_cache.errors import PrewarmError, SettingsError
from dejavu_cache.settings import PREFIX
from dejavu_cache.system.notices import counted

from ..options import JsonOption
from ..output import say, show_json

if TYPE_CHECKING:
    from dejavu_cache.runtime.run_files import ActivityEvent

__all__ = ["register"]

PATIENCE = 10.0
"""Seconds that a program has to end when the verification is ended."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
    )(verify)


def verify(
    command: Annotated[
        list[str],
        typer.Argument(metavar="-- COMMAND…", help="The program, with its arguments."),
    ],
    expect_hits: Annotated[
        bool,
        typer.Option("--expect-hits", help="Fail if anything was benchmarked, compiled or missed."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a program, and say what it benchmarked, compiled and missed.

    The program is observed from when its first kernel is decorated.
    """
    from dejavu_cache.runtime.run_files import read_events

    command = command[1:] if command[:1] == ["--"] else command
    if not command:
        raise SettingsError("verify: name the program after --")
    with tempfile.TemporaryDirectory(prefix="dejavu-cache-report-") as folder:
        # The program may change to another user, who must be able to write here too.
        Path(folder).chmod(0o1777)
        code = _run_program(command, folder, sys.stderr if as_json else None)
        observed = read_events(Path(folder))
    _say_events(observed, code, as_json)
    if code:
        raise PrewarmError(f"the program failed with exit code {code}, so nothing was shown")
    if expect_hits and (any(event.is_unwanted for event in observed) or not observed):
        raise typer.Exit(1)


def _run_program(command: list[str], report: str, stdout: IO[str] | None) -> int:
    """Run a program to its end, and return its exit code; what ends this process ends it too.

    Args:
        command: the program and its arguments.
        report: the folder in which it reports.
        stdout: where it prints; None for this process's own.
    """

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    ending = [  # those that are ignored, as under nohup, stay ignored
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) == signal.SIG_DFL
    ]
    environment = {**os.environ, f"{PREFIX}REPORT": report}
    try:
        program = subprocess.Popen(command, env=environment, stdout=stdout)
    except OSError as error:
        raise SettingsError(f"verify: {command[0]} cannot be run: {error.strerror}") from None
    try:
        for number in ending:
            signal.signal(number, end)
        return program.wait()
    except BaseException:
        program.terminate()
        try:
            program.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            program.kill()
        raise
    finally:
        for number in ending:
            signal.signal(number, signal.SIG_DFL)


def _say_events(events: list[ActivityEvent], code: int, as_json: bool) -> None:
    counts = Counter(event.what for event in events)
    if as_json:
        show_json(
            {
                "exit_code": code,
                "counts": counts,
                "events": [event.model_dump() for event in events],
            }
        )
        return
    unwanted = Counter(
        (event.what, event.about, event.detail) for event in events if event.is_unwanted
    )
    for (what, about, detail), times in unwanted.items():
        repetition = f" {times} times" if times > 1 else ""
        say(f"{what}{repetition}: {about}{f' ({detail})' if detail else ''}")
    if not events:
        say("nothing was seen: no process decorated a kernel with cached_autotune")
        return
    say(
        f"{counted(counts['started'], 'process', 'processes')}: "
        f"{counted(counts['hit'], 'scenario')} hit, {counts['missed']} missed, "
        f"{counts['benchmarked']} benchmarked; {counted(counts['loaded'], 'kernel')} loaded, "
        f"{counts['compiled']} compiled, {counted(counts['built'], 'module')} built"
    )
