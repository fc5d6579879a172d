"""Text and JSON that the command `sweep` prints about a sweep's report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dejavu_cache.system.notices import counted

from .output import say, show_table

if TYPE_CHECKING:
    from dejavu_cache.sweep.hosts import CaseOutcome
    from dejavu_cache.sweep.runner import SweepReport

__all__ = ["drift", "report_json", "say_drift", "say_plan", "say_report", "say_unfinished"]


def say_report(report: SweepReport, url: str) -> None:
    """Print the outcome of a sweep that measured."""
    for outcome in report.of("failed", "skipped", "busy"):
        reasons = {"skipped": "no memory for it", "busy": "another sweep measures it"}
        reason = reasons.get(outcome.status, outcome.status)
        say(f"{outcome.case}: {reason}{': ' + outcome.message if outcome.message else ''}")
    tuned, recorded, unwanted = (
        len(report.of(status)) for status in ("tuned", "known", "unwanted")
    )
    line = f"{counted(tuned, 'case')} tuned, {counted(report.measured, 'config')} measured in "
    line += f"{report.seconds:.0f} s; {counted(recorded, 'was', 'were')} there already"
    if unwanted:
        line += f", {unwanted} nobody asked for"
    if not report.kept and len(report.of("failed")) < len(report.outcomes):
        line += f"; records are in {url}"
    say(line)


def say_unfinished(report: SweepReport, lacking: int) -> None:
    """Print what the sweep left to do, and how to continue.

    Args:
        report: the sweep's report.
        lacking: how many misses have no case in the suite.
    """
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


def say_plan(report: SweepReport, url: str) -> None:
    """Print what a sweep would measure."""
    due, unusable = report.of("due"), report.of("failed", "skipped")
    for outcome in unusable:
        say(f"{outcome.case}: {outcome.status}: {outcome.message}")
    if due:
        _show_due(due, url, min(report.workers, len(due)))
    elif not unusable:
        known = counted(len(report.of("known")), "case is", "cases are")
        say(f"nothing to measure: {known} tuned in {url}")
    if unusable:
        say(f"cases of which it is not known what is left to measure: {len(unusable)}")


def say_drift(report: SweepReport) -> None:
    """Print how the winners' times differ from the recorded ones."""
    rows = [
        (
            outcome.case,
            outcome.message,
            f"{outcome.recorded:.4g}",
            f"{outcome.again:.4g}",
            f"{drift(outcome):+.1%}",
        )
        for outcome in report.of("verified")
    ]
    show_table(["case", "winner", "recorded ms", "now ms", "drift"], rows)
    for outcome in report.of("failed", "skipped"):
        say(f"{outcome.case}: {outcome.status}: {outcome.message}")


def drift(outcome: CaseOutcome) -> float:
    """Return by how much a winner is slower than recorded, as a share of the recorded time."""
    return (outcome.again or 0.0) / outcome.recorded - 1 if outcome.recorded else 0.0


def report_json(report: SweepReport) -> dict[str, Any]:
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


def _show_due(due: Sequence[CaseOutcome], url: str, workers: int) -> None:
    show_table(
        ["case", "scenario", "configs to measure"],
        [(outcome.case, outcome.scenario, outcome.due) for outcome in due],
    )
    estimates = [outcome.estimate for outcome in due if outcome.estimate is not None]
    if estimates:
        # Cases without a record are taken to last as long as the others do on average.
        duration = f"about {sum(estimates) * len(due) / len(estimates) / workers:.0f} s"
    else:
        duration = "with no earlier measurements to estimate the time from"
    configs = counted(sum(outcome.due for outcome in due), "config")
    say(f"{configs} of {counted(len(due), 'case')} to measure into {url}, {duration}")
