"""`sweep`: ahead-of-time tuning of a suite's cases, on this machine or on a cluster."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dejavu_cache.errors import ExitCode, SettingsError
from dejavu_cache.model.scenario import Scenario
from dejavu_cache.system.notices import counted

from ..chosen_server import worklist
from ..chosen_store import open_chosen_store
from ..extras import require_triton
from ..options import (
    JsonOption,
    PresetOption,
    StoreOption,
    SuiteArgument,
    SuiteOption,
    parse_suite_options,
)
from ..output import say, show_json
from ..progress_lines import report_loss, sweep_lines
from ..sweep_summary import (
    drift,
    report_json,
    say_drift,
    say_plan,
    say_report,
    say_unfinished,
)

if TYPE_CHECKING:
    from dejavu_cache.sweep.hosts import MissedScenario, SweepHost, SweepSpec, Task
    from dejavu_cache.sweep.runner import SweepReport

__all__ = ["register"]

LARGEST_DRIFT = 0.1
"""Share by which a winner's time may differ from the recorded one in a verification."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(sweep)


def sweep(
    suite: SuiteArgument,
    store: StoreOption = "",
    preset: PresetOption = "",
    option: SuiteOption = None,
    budget: Annotated[str, typer.Option(help="How long it may take: 90s, 20m, 2h.")] = "",
    shard: Annotated[
        str, typer.Option(metavar="I/N", help="Only the i-th of n parts of the cases.")
    ] = "",
    gpus: Annotated[
        str, typer.Option(help="all, or their numbers: 0,2. One process per GPU.")
    ] = "",
    ray: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="Measure on a Ray cluster: auto, ray://head:10001."),
    ] = "",
    from_misses: Annotated[
        bool,
        typer.Option(
            "--from-misses", help="Only what programs asked the server for and nobody has tuned."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say how much there is to measure; measure nothing.")
    ] = False,
    verify: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Measure N tuned winners again; report drift."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Tune all cases of a suite.

    What is recorded already is not measured again, and a sweep that is stopped loses nothing.
    """
    _refuse_both("--verify", verify, "--dry-run", dry_run)
    _refuse_both("--gpus", gpus, "--ray", ray)
    home = open_chosen_store(store)
    if home.url.startswith("memory:"):
        raise SettingsError(
            "a sweep into memory:// would be lost at its end: give --store a folder or a server"
        )
    options = parse_suite_options(option, preset)
    if suite.partition(":")[0].endswith(".py"):  # workers may have other working directories
        suite = str(Path(suite).absolute())
    seconds = _seconds(budget) if budget else None
    do: Task = "plan" if dry_run else "verify" if verify else "measure"
    try:
        spec = _spec(suite, options, home.url, from_misses)
        report = _run(partial(_hosts, spec, gpus, ray), do, shard, verify, seconds, as_json)
    except KeyboardInterrupt:  # before the sweep began, or for the second time during it
        sys.stderr.write("stopped (interrupted); what was measured is kept\n")
        sys.stderr.write("run the same command again to go on\n")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    # Only a sweep over the whole suite can tell which misses have no case.
    lacking = 0 if shard or verify or report.left else _without_case(spec.misses or (), report)
    why_empty = None if report.total or report.stopped else _why_empty(suite)
    if as_json:
        show_json({**report_json(report), "misses_without_case": lacking, "why_empty": why_empty})
    elif why_empty:
        say(f"nothing to tune: {why_empty}")
    else:
        _say_report(report, do, home.url, lacking)
    for path in report.kept:
        sys.stderr.write(
            f"{home.url} has not taken all of it: {path} waits for the next sweep into it\n"
        )
    if report.stopped == "interrupted":
        raise typer.Exit(ExitCode.INTERRUPTED)
    drifted = [case for case in report.of("verified") if abs(drift(case)) > LARGEST_DRIFT]
    # A dry run keeps nothing and leaves all cases as they are, so that only failures count.
    unfinished = bool(report.of("failed")) if dry_run else not report.complete
    if report.kept or lacking or drifted or report.left or unfinished:
        raise typer.Exit(1)


def _why_empty(suite: str) -> str:
    from dejavu_cache.sweep.suite import load_suite

    return load_suite(suite).why_empty


def _say_report(report: SweepReport, do: Task, url: str, lacking: int) -> None:
    if do == "plan":
        say_plan(report, url)
    elif do == "verify":
        say_drift(report)
    else:
        say_report(report, url)
    say_unfinished(report, lacking)


def _refuse_both(name: str, value: object, other_name: str, other_value: object) -> None:
    if value and other_value:
        raise SettingsError(f"{name} and {other_name}: give one of them")


def _spec(suite: str, options: dict[str, str], url: str, from_misses: bool) -> SweepSpec:
    from dejavu_cache.sweep.hosts import SweepSpec

    return SweepSpec(
        suite=suite, options=options, store=url, misses=_misses(url) if from_misses else None
    )


def _run(
    new_hosts: Callable[[], Sequence[SweepHost]],
    do: Task,
    shard: str,
    sample: int | None,
    seconds: float | None,
    quiet: bool,
) -> SweepReport:
    from dejavu_cache.sweep.runner import Sweep

    hosts = new_hosts()
    try:
        cases = hosts[0].start()
        if sample and cases:
            report = Sweep(hosts, cases, do="plan", shard=shard).run()
            if report.stopped:
                return report
            cases, shard = _sample_tuned(report, sample), ""
            hosts = new_hosts()  # a sweep closes its hosts
        with _progress(len(cases), quiet) as on_event:
            return Sweep(hosts, cases, do=do, shard=shard, budget=seconds, on_event=on_event).run()
    finally:
        for host in hosts:
            host.close()


def _hosts(spec: SweepSpec, gpus: str, ray: str) -> Sequence[SweepHost]:
    from dejavu_cache.sweep.hosts import LocalHost, single_gpu

    if ray:
        from dejavu_cache.sweep.hosts import ray_hosts

        hosts = ray_hosts(spec, ray)
        if not hosts:
            raise SettingsError(f"--ray {ray}: the cluster has neither GPUs nor CPUs")
        return hosts
    require_triton()
    if not gpus:
        return [LocalHost(spec)]
    return [LocalHost(spec, single_gpu(int(number))) for number in _gpu_numbers(gpus)]


def _gpu_numbers(gpus: str) -> list[str]:
    import torch

    count = torch.cuda.device_count()
    if gpus == "all":
        numbers = [str(number) for number in range(count)]
    else:
        numbers = [number.strip() for number in gpus.split(",")]
    wrong = [
        number
        for number in numbers
        if not (re.fullmatch("[0-9]{1,9}", number) and int(number) < count)
    ]
    if wrong or not numbers:
        raise SettingsError(
            f"--gpus {gpus}: this machine has {counted(count, 'GPU')}: give all, or numbers from 0"
        )
    return numbers


def _misses(url: str) -> tuple[MissedScenario, ...]:
    from dejavu_cache.sweep.hosts import MissedScenario

    return tuple(
        MissedScenario(
            kernel=row["context"]["kernel"]["name"],
            device=row["context"]["environment"]["device"]["name"],
            scenario=Scenario.model_validate(row["scenario"]),
        )
        for row in worklist(url)
    )


def _seconds(text: str) -> float:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smh]?)", text)
    if not match or float(match[1]) == 0:
        raise SettingsError(f"--budget {text!r}: write 90s, 20m or 2h")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def _without_case(misses: Sequence[MissedScenario], report: SweepReport) -> int:
    """Count misses of the suite's kernels and devices whose scenario is no case of the suite."""
    outcomes = report.outcomes.values()
    swept = {(outcome.kernel, outcome.device) for outcome in outcomes}
    scenarios = {(outcome.kernel, outcome.device, outcome.scenario) for outcome in outcomes}
    return sum(
        (miss.kernel, miss.device) in swept
        and (miss.kernel, miss.device, str(miss.scenario)) not in scenarios
        for miss in misses
    )


def _sample_tuned(plan: SweepReport, size: int) -> list[str]:
    """Return a random sample of the tuned cases."""
    tuned = [outcome.case for outcome in plan.of("known")]
    if not tuned:
        raise SettingsError(
            "nothing of this suite is tuned yet: run the sweep without --verify first"
        )
    return random.sample(tuned, min(size, len(tuned)))


def _progress(cases: int, quiet: bool) -> Any:
    """Show a progress bar on a terminal, elsewhere a line now and then."""
    if quiet:
        return nullcontext(report_loss)
    if not sys.stderr.isatty():
        return sweep_lines(cases)
    from ..progress import sweep_bar

    return sweep_bar(cases)
