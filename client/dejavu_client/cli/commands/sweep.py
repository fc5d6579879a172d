"""`sweep`: ahead-of-time tuning of a suite's cases, on this machine or on a cluster."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dejavu_cache.errors import ExitCode, SettingsError
from dejavu_cache.system.notices import counted

from ..application import app
from ..chosen_store import open_chosen_store, worklist
from ..errors import require_triton
from ..options import JsonOption, StoreOption, parse_assignments
from ..output import say, show_json, show_progress

if TYPE_CHECKING:
    from dejavu_cache.sweep.hosts import MissedScenario, SweepHost, SweepSpec
    from dejavu_cache.sweep.runner import SweepReport


@app.command()
def sweep(
    suite: Annotated[
        str, typer.Argument(metavar="MODULE[:SUITE]", help="The suite, or FILE.py[:SUITE].")
    ],
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="An option of the suite; may repeat."),
    ] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="How long it may tune: 90s, 20m, 2h.")
    ] = None,
    gpus: Annotated[
        str,
        typer.Option(metavar="NUMBERS", help="all, or their numbers: 0,2. One process per GPU."),
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
    worth: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="--from-misses for so long, without tunes that take longer than what they save.",
        ),
    ] = None,
    tune_loss: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            help="Leave out configs that records of other sizes and GPUs make unlikely to be "
            "faster by more than this share.",
        ),
    ] = 0.0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say which cases are not tuned; measure nothing.")
    ] = False,
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Tune all cases of a suite.

    What is recorded already is not measured again, and a sweep that is stopped loses nothing.
    """
    from dejavu_cache.sweep.runner import Sweep

    if gpus and ray:
        raise SettingsError("--gpus and --ray: give one of them")
    if budget is not None and worth is not None:
        raise SettingsError("--budget and --worth: give one of them")
    url, is_weighed = _lasting_url(store), worth is not None
    if is_weighed or tune_loss:
        import numpy  # noqa: F401 - else nothing is predicted, and all configs are measured
    seconds = _seconds("--worth", worth) if is_weighed else _seconds("--budget", budget)
    options = parse_assignments(option, "--option")
    spec = _spec(suite, options, url, from_misses or is_weighed, tune_loss)
    show_progress()
    try:
        hosts = _hosts(spec, gpus, ray)
        begun = Sweep(hosts, measures=not dry_run, budget=seconds, only_worthwhile=is_weighed)
        report = begun.run()
    except KeyboardInterrupt:  # before the sweep began, or for the second time during it
        sys.stderr.write("stopped (interrupted); what was measured is kept\n")
        sys.stderr.write("run the same command again to go on\n")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    _conclude(report, spec, as_json)


def _lasting_url(store: str) -> str:
    """Return the URL of the store to sweep into, which must outlive the command."""
    with open_chosen_store(store) as home:
        url = home.url
    if url.startswith("memory:"):
        raise SettingsError(
            "a sweep into memory:// would be lost at its end: give --store a folder or a server"
        )
    return url


def _conclude(report: SweepReport, spec: SweepSpec, as_json: bool) -> None:
    """Print what a sweep has done, and exit with a status if something is left."""
    from dejavu_cache.sweep.suite import load_suite

    # Only a sweep over the whole suite can tell which misses have no case.
    lacking = 0 if report.left else _without_case(spec.misses or (), report)
    is_empty = not (report.outcomes or report.left or report.stopped)
    why_empty = load_suite(spec.suite).why_empty if is_empty else None
    if as_json:
        show_json({**_report_json(report), "misses_without_case": lacking, "why_empty": why_empty})
    else:
        _say_report(report, spec.store, lacking, why_empty)
    for path in report.kept:
        sys.stderr.write(
            f"{spec.store} has not taken all of it: {path} waits for the next sweep into it\n"
        )
    if report.stopped == "interrupted":
        raise typer.Exit(ExitCode.INTERRUPTED)
    if lacking or not report.complete:
        raise typer.Exit(1)


def _spec(
    suite: str, options: dict[str, str], url: str, from_misses: bool, loss: float
) -> SweepSpec:
    from dejavu_cache.sweep.hosts import MissedScenario, SweepSpec

    if not 0 <= loss < 1:
        raise SettingsError(f"--tune-loss {loss}: give a share, such as 0.01")
    if suite.partition(":")[0].endswith(".py"):  # workers may have other working directories
        suite = str(Path(suite).absolute())
    launches: Counter[MissedScenario] = Counter()
    for miss in worklist(url) if from_misses else ():
        context = miss.context
        device = context.environment.device.name
        missed = MissedScenario(kernel=context.kernel.name, device=device, scenario=miss.scenario)
        launches[missed] += miss.count
    misses = tuple(launches.items()) if from_misses else None
    return SweepSpec(suite=suite, options=options, store=url, misses=misses, loss=loss)


def _hosts(spec: SweepSpec, gpus: str, ray: str) -> Sequence[SweepHost]:
    from dejavu_cache.sweep.hosts import LocalHost, ray_hosts, single_gpu

    if ray:
        hosts = ray_hosts(spec, ray)
        if not hosts:
            raise SettingsError(f"--ray {ray}: the cluster has neither GPUs nor CPUs")
        return hosts
    require_triton()
    if not gpus:
        return [LocalHost(spec)]
    return [LocalHost(spec, single_gpu(number)) for number in _gpu_numbers(gpus)]


def _gpu_numbers(gpus: str) -> list[int]:
    import torch

    count = torch.cuda.device_count()
    named = [*map(str, range(count))] if gpus == "all" else gpus.split(",")
    numbers = [int(number) for number in named if re.fullmatch("[0-9]{1,9}", number)]
    if not numbers or len(numbers) < len(named) or max(numbers) >= count:
        raise SettingsError(
            f"--gpus {gpus}: this machine has {counted(count, 'GPU')}: give all, or numbers from 0"
        )
    return numbers


def _seconds(option: str, text: str | None) -> float | None:
    if text is None:
        return None
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smh]?)", text)
    if not match or float(match[1]) == 0:
        raise SettingsError(f"{option} {text!r}: write 90s, 20m or 2h")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def _without_case(misses: Sequence[tuple[MissedScenario, int]], report: SweepReport) -> int:
    """Count misses of the suite's kernels and devices whose scenario is no case of the suite."""
    outcomes = report.outcomes.values()
    swept = {(outcome.kernel, outcome.device) for outcome in outcomes}
    scenarios = {(outcome.kernel, outcome.device, outcome.scenario) for outcome in outcomes}
    return sum(
        (miss.kernel, miss.device) in swept
        and (miss.kernel, miss.device, str(miss.scenario)) not in scenarios
        for miss, _ in misses
    )


_REASONS = {"skipped": "no memory for it", "busy": "another sweep measures it"}
_STATES = {"due": "not tuned", "unworthy": "not worth a tune", "tuned": "tuned"}


def _say_report(report: SweepReport, url: str, lacking: int, why_empty: str | None) -> None:
    """Print what became of a sweep's cases, what it left to do, and how to continue."""
    if why_empty:
        say(f"nothing to tune: {why_empty}")
        return
    for outcome in report.of("failed", "skipped", "busy"):
        reason = _REASONS.get(outcome.status, outcome.status)
        say(f"{outcome.case}: {reason}{': ' + outcome.message if outcome.message else ''}")
    for outcome in report.of(*_STATES):
        worth = f": {outcome.worth}" if outcome.worth else ""
        if worth or outcome.status == "due":
            say(f"{outcome.case}: {_STATES[outcome.status]}: {outcome.scenario}{worth}")
    say(f"{_counts(report)} in {url}")
    if lacking:
        say(
            f"{counted(lacking, 'miss has', 'misses have')} no case here: the suite needs one, "
            "or a for_scenario that makes it"
        )
    unfinished = len(report.left) + len(report.of("partial", "busy"))
    if report.stopped:
        left = counted(unfinished, "case")
        say(f"stopped ({report.stopped}) with {left} to go; what was measured is kept")
    if report.stopped or unfinished:
        say("run the same command again to go on")


def _counts(report: SweepReport) -> str:
    amounts = {
        "not tuned": len(report.of("due")),
        "nobody asked for": len(report.of("unwanted")),
        "not worth it": len(report.of("unworthy")),
    }
    tuned, known = len(report.of("tuned")), len(report.of("known"))
    text = (
        f"{counted(tuned, 'case')} tuned, {counted(report.measured, 'config')} measured in "
        f"{report.seconds:.0f} s; {counted(known, 'was', 'were')} there already"
    )
    return text + "".join(f", {count} {what}" for what, count in amounts.items() if count)


def _report_json(report: SweepReport) -> dict[str, Any]:
    """Return a report as values for JSON."""
    outcomes = report.outcomes.values()
    return {
        "outcomes": [outcome.model_dump(exclude_none=True) for outcome in outcomes],
        "left": report.left,
        "stopped": report.stopped,
        "kept": report.kept,
        "measured": report.measured,
        "seconds": round(report.seconds, 1),
        "complete": report.complete,
    }
