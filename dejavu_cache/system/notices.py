"""The library's log: warnings once per process, and on request all of it on standard error."""

from __future__ import annotations

import logging
from functools import cache

from .fork_lock import ForkLock
from .printable_text import printable

__all__ = ["logger", "show_log", "warn_once"]

logger = logging.getLogger("dejavu_cache")

_said: set[str] = set()
_lock = ForkLock()


def warn_once(about: str, message: str) -> None:
    """Log a warning, unless this process has already logged one about the same subject."""
    with _lock:
        if about in _said:
            return
        _said.add(about)
    logger.warning(printable(message))  # it may quote a stranger's file, or its name


@cache
def show_log(level: str) -> None:
    """Write the log to standard error from a level on, once per process.

    Args:
        level: a level of `logging`, in lower case; empty: the program's own handlers decide.
    """
    if not level:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False  # else a program that logs too would print each line twice
