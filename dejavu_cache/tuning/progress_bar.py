"""A bar on the terminal for a tune that takes more than a moment."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["progress"]

SHOWN_AFTER = 2.0
"""Seconds."""


@contextmanager
def progress(title: str, total: int, *, wanted: bool = True) -> Iterator[Callable[[], None]]:
    """Counts to a total on standard error, once two seconds are over, if that is a terminal.

    Yields:
        What is to be called for each one that is done.
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
