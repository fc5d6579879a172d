"""Lines on standard error about the progress of long commands."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from dejavu_cache.system.notices import counted

__all__ = ["ProgressLines", "fit_lines", "prewarm_lines", "report_loss", "sweep_lines"]

LINE_EVERY = 10.0
"""Seconds between two lines."""


class ProgressLines:
    """Prints how far a command is, at most every ten seconds, so that short ones say nothing."""

    def __init__(self, subject: str) -> None:
        """Begin, with what the command does."""
        self._subject = subject
        self._started = self._printed = time.monotonic()

    def update(self, state: str) -> None:
        """Print a state unless the last line is too young."""
        now = time.monotonic()
        if now - self._printed >= LINE_EVERY:
            self._printed = now
            sys.stderr.write(f"{self._subject}: {state} after {now - self._started:.0f} s\n")
            sys.stderr.flush()


def report_loss(event: Mapping[str, Any]) -> None:
    """Print a line for an event of a sweep that tells of a lost worker."""
    if event["event"] == "lost":
        sys.stderr.write(f"{event['case']}: {event['reason']}; another process takes it over\n")


def sweep_lines(cases: int) -> Callable[[Mapping[str, Any]], None]:
    """Return the callback for a sweep's events; a case that ends a worker has its own line."""
    lines = ProgressLines("sweep")
    done = configs = 0

    def on_event(event: Mapping[str, Any]) -> None:
        nonlocal done, configs
        done += event["event"] == "outcome"
        configs += event["event"] == "config"
        report_loss(event)
        lines.update(f"{done} of {counted(cases, 'case')}, {counted(configs, 'config')}")

    return on_event


def fit_lines(title: str) -> Callable[[float], None]:
    """Return the callback for the share of a fit that is done, from 0 to 1."""
    lines = ProgressLines(title)
    return lambda share: lines.update(f"{share:.0%}")


def prewarm_lines() -> Callable[[int, int], None]:
    """Return the callback for the binaries of a prewarm."""
    lines = ProgressLines("prewarm")
    return lambda done, total: lines.update(f"{done} of {counted(total, 'binary', 'binaries')}")
