"""Progress bars on standard error for commands that take more than a moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

__all__ = ["prewarm_bar", "sweep_bar"]


@contextmanager
def sweep_bar(cases: int) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Show a sweep's progress over its cases; yield the callback for the sweep's events."""
    columns = (
        TextColumn("cases"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[configs]} configs, {task.fields[case]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=cases, configs=0, case="starting")
        configs = 0

        def on_event(event: Mapping[str, Any]) -> None:
            nonlocal configs
            if event["event"] == "config":
                configs += 1
                progress.update(task, configs=configs)
            elif event["event"] == "case":
                progress.update(task, case=event["case"])
            elif event["event"] == "outcome":
                progress.advance(task)
            elif event["event"] == "lost":
                progress.console.print(
                    f"{event['case']}: {event['reason']}; another process takes it over"
                )

        yield on_event


@contextmanager
def prewarm_bar() -> Iterator[Callable[[int, int, str], None]]:
    """Show a prewarm's progress over its binaries; yield the callback for each of them."""
    columns = (
        TextColumn("binaries"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[last]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None, last="looking at the records")
        yield lambda done, total, last: progress.update(
            task, completed=done, total=total, last=last
        )
