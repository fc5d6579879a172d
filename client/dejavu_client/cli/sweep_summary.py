"""Text and JSON that the command `sweep` prints about a sweep's report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dejavu_cache.system.notices import counted

from .output import say

if TYPE_CHECKING:
    from dejavu_cache.sweep.runner import SweepReport

__all__ = ["report_json", "say_report"]

_REASONS = {"skipped": "no memory for it", "busy": "another sweep measures it"}


def say_report(report: SweepReport, url: str, lacking: int, why_empty: str | None) -> None:
    """Print what became of a sweep's cases, what it left to do, and how to continue.

    Args:
        report: the sweep's report.
        url: the store.
        lacking: how many misses have no case in the suite.
        why_empty: why the suite has no cases; None if it has some.
    """
    if why_empty:
        say(f"nothing to tune: {why_empty}")
        return
    for outcome in report.of("failed", "skipped", "busy"):
        reason = _REASONS.get(outcome.status, outcome.status)
        say(f"{outcome.case}: {reason}{': ' + outcome.message if outcome.message else ''}")
    for outcome in report.of("due"):
        say(f"{outcome.case}: not tuned: {outcome.scenario}")
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
    }
    tuned, known = len(report.of("tuned")), len(report.of("known"))
    text = (
        f"{counted(tuned, 'case')} tuned, {counted(report.measured, 'config')} measured in "
        f"{report.seconds:.0f} s; {counted(known, 'was', 'were')} there already"
    )
    return text + "".join(f", {count} {what}" for what, count in amounts.items() if count)


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
