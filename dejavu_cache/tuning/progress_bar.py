"""Progress of tunes that take more than two seconds: a bar on a terminal, else lines in the log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..system.notices import logger

__all__ = ["progress"]

SHOWN_AFTER = 2.0
"""Seconds until the bar appears."""


LINE_EVERY = 10.0
"""Seconds between two lines in the log."""


@contextmanager
def progress(
    title: str, total: int, *, unit: str = "configs", wanted: bool = True
) -> Iterator[Callable[[], None]]:
    """Show a bar on standard error once two seconds are over; log lines if that is no terminal.

    Args:
        title: the text beside the bar.
        total: the number of steps.
        unit: what the steps are.
        wanted: whether to show progress at all.

    Yields:
        A function to call after each step.
    """
    if not wanted:
        yield lambda: None
    elif sys.stderr is None or not sys.stderr.isatty():
        yield _log_steps(title, total, unit)
    else:
        with _bar_of_steps(title, total) as advance:
            yield advance


def _log_steps(title: str, total: int, unit: str) -> Callable[[], None]:
    start, done, logged = time.monotonic(), 0, 0

    def advance() -> None:
        nonlocal done, logged
        done += 1
        seconds = time.monotonic() - start
        if seconds // LINE_EVERY > logged:
            logged = int(seconds // LINE_EVERY)
            logger.info("tuning %s: %d of %d %s after %.0f s", title, done, total, unit, seconds)

    return advance


@contextmanager
def _bar_of_steps(title: str, total: int) -> Iterator[Callable[[], None]]:
    start, done, bar = time.monotonic(), 0, None

    def advance() -> None:
        nonlocal done, bar
        done += 1
        if bar is None and time.monotonic() - start > SHOWN_AFTER:
            bar = _bar(title, total)
        if bar is not None:
            bar.update(bar.task_ids[0], completed=min(done, total))

    try:
        yield advance
    finally:
        if bar is not None:
            bar.stop()


def _bar(title: str, total: int) -> Any:
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True), transient=True)
    bar.add_task(f"tuning {escape(title)}", total=total)
    bar.start()
    return bar
