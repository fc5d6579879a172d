"""A progress bar for tunes that take more than two seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["progress"]

SHOWN_AFTER = 2.0
"""Seconds until the bar appears."""


@contextmanager
def progress(title: str, total: int, *, wanted: bool = True) -> Iterator[Callable[[], None]]:
    """Show a bar on standard error, if it is a terminal, once two seconds are over.

    Args:
        title: the text beside the bar.
        total: the number of steps.
        wanted: whether to show a bar at all.

    Yields:
        A function to call after each step.
    """
    if not (wanted and sys.stderr.isatty()):
        yield lambda: None
        return
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
