"""`verify`: a check of what a program benchmarks and compiles, or of recorded winners."""

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

from ..chosen_store import open_existing_store
from ..errors import NothingFoundError
from ..options import JsonOption, PresetOption, StoreOption, SuiteOption, parse_suite_options
from ..output import say, show_json

if TYPE_CHECKING:
    from dejavu_cache.runtime.run_files import ActivityEvent
    from dejavu_cache.sweep.winner_verification import VerifiedWinner

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
        typer.Argument(
            metavar="-- COMMAND…",
            help="The program, with its arguments; with --winners, a suite as for `sweep`.",
        ),
    ],
    expect_hits: Annotated[
        bool,
        typer.Option("--expect-hits", help="Fail if anything was benchmarked, compiled or missed."),
    ] = False,
    winners: Annotated[
        int | None,
        typer.Option(
            "--winners",
            metavar="N",
            min=1,
            help="Measure N recorded winners of a suite again, and set aside what no longer holds.",
        ),
    ] = None,
    store: StoreOption = "",
    preset: PresetOption = "",
    option: SuiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a program, and say what it benchmarked, compiled and missed.

    The program is observed from when its first kernel is decorated. With --winners, recorded
    winners, drawn at random, race their runner-up and the default config on this GPU instead. One
    that is slower, twice in a row and by more than the race's error, is replaced by the fastest; on
    a server that needs the role admin, and what it replaces is quarantined. Exits with 1 if there
    is one.
    """
    command = command[1:] if command[:1] == ["--"] else command
    if winners is None and (store or preset or option):
        raise SettingsError("verify: --store, --preset and --option need --winners")
    if winners is None:
        _verify_program(command, expect_hits, as_json)
    elif expect_hits or len(command) != 1:
        raise SettingsError(
            "verify: name one suite, behind all options, as in: "
            "verify --winners 20 --store URL shop.suites:matmul"
        )
    else:
        _verify_winners(command[0], winners, store, parse_suite_options(option, preset), as_json)


def _verify_program(command: list[str], expect_hits: bool, as_json: bool) -> None:
    from dejavu_cache.runtime.run_files import read_events

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


def _verify_winners(
    suite: str, most: int, store: str, options: dict[str, str], as_json: bool
) -> None:
    from dejavu_cache.sweep.suite import load_suite
    from dejavu_cache.sweep.winner_verification import verify_winners

    verified = []
    with open_existing_store(store, write=True) as chosen:
        next(chosen.contexts(), None)  # raises before the suite is imported if no store answers
        for winner in verify_winners(load_suite(suite).load_all_cases(options), chosen, most):
            verified.append(winner)
            if not as_json:
                _say_winner(winner)
        url = chosen.url
    if not verified:
        raise NothingFoundError(f"{url} has no winner for a case of {suite} on this GPU")
    outcomes: Counter[str] = Counter(winner.outcome for winner in verified)
    if as_json:
        show_json({"winners": [winner._asdict() for winner in verified], **outcomes})
    else:
        amounts = [f"{outcomes[kind]} {text}" for kind, text in _OUTCOMES.items()]
        say(f"{counted(len(verified), 'winner')} measured again: {', '.join(amounts)}")
    if outcomes["set aside"]:
        raise typer.Exit(1)


_OUTCOMES = {"holds": "hold", "set aside": "set aside", "unchecked": "unchecked"}


def _say_winner(winner: VerifiedWinner) -> None:
    line = f"{winner.outcome}: {winner.kernel}{winner.scenario} ({winner.config})"
    if winner.recorded is not None and winner.again is not None:
        line += f": {winner.again:.4g} ms, recorded {winner.recorded:.4g}"
    if winner.outcome == "holds" and winner.cost is not None and winner.error is not None:
        line += f"; {1 / winner.cost:.2f}x for ({winner.rival}), to within {winner.error:.1%}"
    if winner.reason:
        line += f": {winner.reason}"
    if winner.winner != winner.config:
        line += f"; now ({winner.winner}) wins"
    say(line)


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
