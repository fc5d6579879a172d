"""`run` and `verify`: programs whose kernels are cached, and programs that are observed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

import dejavu_cache
from dejavu_cache.errors import PrewarmError, SettingsError
from dejavu_cache.settings import PREFIX, Settings
from dejavu_cache.stores import make_absolute
from dejavu_cache.system.notices import counted

from ..application import app
from ..options import JsonOption
from ..output import say, show_json

if TYPE_CHECKING:
    from dejavu_cache.runtime.run_files import ActivityEvent

STARTUP = Path(dejavu_cache.__file__).parent / "installation" / "startup"

PATIENCE = 10.0
"""Seconds that a program has to end when the verification is ended."""


def end_in_order() -> None:
    """Have what ends this process raise SystemExit from now on, so that it cleans up."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:  # those that nohup ignores stay ignored
            signal.signal(number, end)


WHOLE_COMMAND = {"ignore_unknown_options": True, "allow_interspersed_args": False}
"""Leaves the options after the program's name to the program."""


@app.command(context_settings=WHOLE_COMMAND)
def run(
    command: Annotated[
        list[str],
        typer.Argument(metavar="-- COMMAND…", help="A Python program, or what starts one."),
    ],
    store: Annotated[
        str, typer.Option(metavar="URL", help="DEJAVU_CACHE_URL for the command.")
    ] = "",
    mode: Annotated[
        str,
        typer.Option(
            metavar="MODE", help="DEJAVU_CACHE_MODE for the command: tune, reuse, strict or off."
        ),
    ] = "",
    policy: Annotated[
        str, typer.Option(metavar="FILE", help="DEJAVU_CACHE_POLICY for the command.")
    ] = "",
) -> None:
    """Run a program in which triton.autotune is cached.

    It is cached in all Python processes that the program starts, too. The command takes this
    process's place. Python's -E, -I and -S switch it off, since they ignore PYTHONPATH.
    """
    options = {
        "URL": make_absolute(store) if store else "",  # the command may change folders
        "MODE": mode,
        "POLICY": str(Path(policy).absolute()) if policy else "",
    }
    changes = {PREFIX + name: value for name, value in options.items() if value}
    environment = {**os.environ, **changes, PREFIX + "INSTALL": "1"}
    Settings.from_environment(environment)  # wrong values raise before the command
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(STARTUP), os.environ.get("PYTHONPATH", "")))
    )
    if policy and not Path(policy).is_file():
        raise SettingsError(f"--policy {policy}: there is no such file")
    executable = shutil.which(command[0])
    if executable is None:
        if Path(command[0]).is_file():
            raise SettingsError(f"{command[0]} is not executable: name its interpreter before it")
        raise SettingsError(f"{command[0]} is no command that can be found")
    sys.stdout.flush()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and a shell does not
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(executable, command, environment)
    except OSError as error:
        raise SettingsError(f"{command[0]} cannot be run: {error.strerror}") from None


@app.command(context_settings=WHOLE_COMMAND)
def verify(
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND…", help="The program, with its arguments.")
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

    end_in_order()
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
    """Run a program that reports to a folder to its end, and return its exit code."""
    environment = {**os.environ, f"{PREFIX}REPORT": report}
    try:
        program = subprocess.Popen(command, env=environment, stdout=stdout)
    except OSError as error:
        raise SettingsError(f"verify: {command[0]} cannot be run: {error.strerror}") from None
    try:
        return program.wait()
    except BaseException:
        program.terminate()
        try:
            program.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            program.kill()
        raise


def _say_events(events: list[ActivityEvent], code: int, as_json: bool) -> None:
    counts = Counter(event.what for event in events)
    if as_json:
        dumped = [event.model_dump() for event in events]
        show_json({"exit_code": code, "counts": counts, "events": dumped})
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
