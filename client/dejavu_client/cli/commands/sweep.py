"""`sweep`: tune the cases of a suite, here or on a cluster, and go on where the last sweep stopped."""

from __future__ import annotations

import os
import random
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dejavu_cache.errors import SettingsError
from dejavu_cache.model.scenario import Scenario
from dejavu_cache.stores import open_store
from dejavu_cache.stores.default import default_store

from ..output import JsonOption, StoreOption, say, show_json, show_table
from .listing import assignments

if TYPE_CHECKING:
    from dejavu_cache.sweep.hosts import SweepHost
    from dejavu_cache.sweep.messages import CaseOutcome, MissedScenario, SweepSpec, Task
    from dejavu_cache.sweep.runner import SweepReport

__all__ = ["register"]

INTERRUPTED = 130
DRIFT = 0.1
"""How much faster or slower a winner may be than recorded before a verification fails."""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(sweep)


def sweep(
    suite: Annotated[
        str, typer.Argument(metavar="MODULE[:SUITE]", help="The suite, or FILE.py[:SUITE].")
    ],
    store: StoreOption = "",
    preset: Annotated[str, typer.Option(help="Short for --option preset=…")] = "",
    option: Annotated[
        list[str],
        typer.Option("--option", metavar="NAME=VALUE", help="An option of the suite; may repeat."),
    ] = [],
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
    """Tune all cases of a suite. What is recorded already is not measured again, and stopping loses nothing."""
    _refuse_both("--verify", verify, "--dry-run", dry_run)
    _refuse_both("--gpus", gpus, "--ray", ray)
    home = open_store(store) if store else default_store()
    if home.url.startswith("memory:"):
        raise SettingsError(
            "a sweep into memory:// would be lost at its end: give --store a folder or a server"
        )
    options = {**assignments(option, "--option"), **({"preset": preset} if preset else {})}
    if suite.partition(":")[0].endswith(".py"):  # workers may have other working directories
        suite = str(Path(suite).absolute())
    seconds = _seconds(budget) if budget else None
    do: Task = "plan" if dry_run else "verify" if verify else "measure"
    try:
        spec = _spec(suite, options, home.url, from_misses)
        report = _run(spec, partial(_hosts, spec, gpus, ray), do, shard, verify, seconds, as_json)
    except KeyboardInterrupt:  # before there was anything to report on, or for the second time
        sys.stderr.write(
            "stopped (interrupted); what was measured is kept\nrun the same command again to go on\n"
        )
        raise typer.Exit(INTERRUPTED) from None
    # A part of the suite does not tell what the whole lacks.
    lacking = 0 if shard or verify or report.left else _without_case(spec.misses or (), report)
    if as_json:
        show_json({**_as_json(report), "misses_without_case": lacking})
    else:
        (_say_plan if dry_run else _say_drift if verify else _say_report)(report, home.url)
        _say_rest(report, lacking)
    for path in report.kept:
        sys.stderr.write(
            f"{home.url} has not taken all of it: {path} waits for the next sweep into it\n"
        )
    if report.stopped == "interrupted":
        raise typer.Exit(INTERRUPTED)
    drifted = [each for each in report.of("verified") if abs(_drift(each)) > DRIFT]
    if report.kept or lacking or drifted or report.left or not (report.complete or dry_run):
        raise typer.Exit(1)


def _refuse_both(one: str, first: object, other: str, second: object) -> None:
    if first and second:
        raise SettingsError(f"{one} and {other}: give one of them")


def _spec(suite: str, options: dict[str, str], url: str, from_misses: bool) -> SweepSpec:
    from dejavu_cache.sweep.messages import SweepSpec

    return SweepSpec(
        suite=suite, options=options, store=url, misses=_misses(url) if from_misses else None
    )


def _run(
    spec: SweepSpec,
    new_hosts: Callable[[], Sequence[SweepHost]],
    do: Task,
    shard: str,
    sample: int | None,
    seconds: float | None,
    quiet: bool,
) -> SweepReport:
    from dejavu_cache.sweep.runner import Sweep, shard_of

    hosts = new_hosts()
    try:
        cases = hosts[0].cases()
        cases = shard_of(cases, shard) if shard else cases
        if sample:
            report = Sweep(hosts, cases, do="plan").run()
            if report.stopped:
                return report
            cases, hosts = _tuned(report, sample), new_hosts()  # a sweep closes its own
        with _progress(len(cases), quiet) as on_event:
            return Sweep(hosts, cases, do=do, budget=seconds, on_event=on_event).run()
    finally:
        for host in hosts:
            host.close()


def _hosts(spec: SweepSpec, gpus: str, ray: str) -> Sequence[SweepHost]:
    from dejavu_cache.sweep.hosts import LocalHost

    if ray:
        from dejavu_cache.sweep.ray_hosts import ray_hosts

        hosts = ray_hosts(spec, ray)
        if not hosts:
            raise SettingsError(f"--ray {ray}: the cluster has neither GPUs nor CPUs")
        return hosts
    if not gpus:
        return [LocalHost(spec)]
    return [LocalHost(spec, _only(number)) for number in _numbers(gpus)]


def _only(number: str) -> dict[str, str]:
    """The environment of a process that sees one GPU of those that this one sees."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    visible = seen.split(",") if seen else []
    name = visible[int(number)] if int(number) < len(visible) else number
    return {"CUDA_VISIBLE_DEVICES": name, "HIP_VISIBLE_DEVICES": name}


def _numbers(gpus: str) -> list[str]:
    import torch

    count = torch.cuda.device_count()
    numbers = (
        [str(number) for number in range(count)]
        if gpus == "all"
        else [each.strip() for each in gpus.split(",")]
    )
    wrong = [
        number
        for number in numbers
        if not (re.fullmatch("[0-9]{1,9}", number) and int(number) < count)
    ]
    if wrong or not numbers:
        raise SettingsError(
            f"--gpus {gpus}: this machine has {count} GPUs: give all, or numbers from 0"
        )
    return numbers


def _misses(url: str) -> tuple[MissedScenario, ...]:
    from dejavu_cache.sweep.messages import MissedScenario

    from .remote import worklist

    return tuple(
        MissedScenario(
            kernel=row["context"]["kernel"]["name"],
            device=row["context"]["environment"]["device"]["name"],
            scenario=Scenario.model_validate(row["scenario"]),
        )
        for row in worklist(url)
    )


def _seconds(text: str) -> float:
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smh]?)", text)
    if not found or float(found[1]) == 0:
        raise SettingsError(f"--budget {text!r}: write 90s, 20m or 2h")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


def _without_case(misses: Sequence[MissedScenario], report: SweepReport) -> int:
    """How many misses of a suite's kernels on its devices none of its cases stands for."""
    outcomes = report.outcomes.values()
    covered = {(each.kernel, each.device) for each in outcomes}
    met = {(each.kernel, each.device, each.scenario) for each in outcomes}
    return sum(
        (miss.kernel, miss.device) in covered
        and (miss.kernel, miss.device, str(miss.scenario)) not in met
        for miss in misses
    )


def _tuned(plan: SweepReport, wanted: int) -> list[str]:
    """A random sample of the cases that are tuned."""
    tuned = [each.case for each in plan.of("known")]
    if not tuned:
        raise SettingsError(
            "nothing of this suite is tuned yet: run the sweep without --verify first"
        )
    return random.sample(tuned, min(wanted, len(tuned)))


def _progress(cases: int, quiet: bool) -> Any:
    """A bar over the cases, on a terminal; what takes workers down is said anywhere."""
    if quiet or not sys.stderr.isatty():
        return nullcontext(_tell_losses)
    from ..progress import bar

    return bar(cases)


def _tell_losses(event: Mapping[str, Any]) -> None:
    if event["event"] == "lost":
        sys.stderr.write(f"{event['case']}: {event['reason']}; another process takes it over\n")


def _say_report(report: SweepReport, url: str) -> None:
    for each in report.of("failed", "skipped", "busy"):
        why = {"skipped": "no memory for it", "busy": "another sweep measures it"}.get(
            each.status, each.status
        )
        say(f"{each.case}: {why}{': ' + each.message if each.message else ''}")
    tuned, known, unwanted = (len(report.of(status)) for status in ("tuned", "known", "unwanted"))
    taken = f"{report.measured} configs measured in {report.seconds:.0f} s"
    there = f"{known} were there already{f', {unwanted} nobody asked for' if unwanted else ''}"
    say(f"{tuned} cases tuned, {taken}; {there}{'' if report.kept else f'; records are in {url}'}")


def _say_rest(report: SweepReport, lacking: int) -> None:
    """What is still to do, and how."""
    if lacking:
        say(
            f"{lacking} misses have no case here: the suite needs one for them, or a for_scenario that makes it"
        )
    unfinished = len(report.left) + len(report.of("partial", "busy"))
    if report.stopped:
        say(f"stopped ({report.stopped}) with {unfinished} cases to go; what was measured is kept")
    if report.stopped or unfinished:
        say("run the same command again to go on")


def _say_plan(report: SweepReport, url: str) -> None:
    due = report.of("due")
    if due:
        _show_due(due, url, min(report.workers, len(due)))
    else:
        say(f"nothing to measure: {len(report.of('known'))} cases are tuned in {url}")
    for each in report.of("failed", "skipped"):
        say(f"{each.case}: {each.status}: {each.message}")


def _show_due(due: Sequence[CaseOutcome], url: str, at_once: int) -> None:
    show_table(
        ["case", "scenario", "configs to measure"],
        [(each.case, each.scenario, each.due) for each in due],
    )
    estimates = [each.estimate for each in due]
    known = [each for each in estimates if each is not None]
    about = (
        f"about {sum(known) * len(due) / len(known) / at_once:.0f} s"
        if known
        else "how long, no record tells yet"
    )
    say(
        f"{sum(each.due for each in due)} configs of {len(due)} cases to measure into {url}, {about}"
    )


def _say_drift(report: SweepReport, url: str) -> None:
    rows = [
        (
            each.case,
            each.message,
            f"{each.recorded:.4g}",
            f"{each.again:.4g}",
            f"{_drift(each):+.1%}",
        )
        for each in report.of("verified")
    ]
    show_table(["case", "winner", "recorded ms", "now ms", "drift"], rows)
    for each in report.of("failed", "skipped"):
        say(f"{each.case}: {each.status}: {each.message}")


def _drift(outcome: CaseOutcome) -> float:
    return (outcome.again or 0.0) / outcome.recorded - 1 if outcome.recorded else 0.0


def _as_json(report: SweepReport) -> dict[str, Any]:
    return {
        "outcomes": [each.model_dump(exclude_none=True) for each in report.outcomes.values()],
        "left": report.left,
        "stopped": report.stopped,
        "kept": report.kept,
        "measured": report.measured,
        "seconds": round(report.seconds, 1),
        "complete": report.complete,
    }
