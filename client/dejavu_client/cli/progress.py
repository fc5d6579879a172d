"""A bar on the terminal for what takes more than a moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

__all__ = ["bar"]


@contextmanager
def bar(cases: int) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Shows a sweep's progress on standard error; yields what is to be told its events."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

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
