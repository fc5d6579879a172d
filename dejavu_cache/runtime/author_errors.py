"""Show the author of a kernel their own errors as Triton shows them.

A config's hook, a pruning function, a benchmark function, a heuristic or the kernel itself may
raise. Some thirty calls of this package lie between the launch and what failed: they are of no help
to the author, and hide the lines that are.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from types import TracebackType

from ..system.notices import logger

__all__ = ["drop_own_frames"]

_OWN = __name__.partition(".")[0]

_NEEDED = sys.stdlib_module_names | {"filelock", "httpx", "platformdirs", "pydantic"}
"""Packages whose errors, where this one has called them, are about this one."""


def drop_own_frames(error: BaseException) -> None:
    """Take this package's calls out of the traceback of an author's error.

    An error of this package stays as it is, and so does every error if debug messages are logged.
    """
    entries = list(_walk(error.__traceback__))
    packages = [entry.tb_frame.f_globals.get("__name__", "").partition(".")[0] for entry in entries]
    if _OWN not in packages or logger.isEnabledFor(logging.DEBUG):
        return
    end = len(packages) - packages[::-1].index(_OWN)
    if end == len(packages) or packages[end] in _NEEDED:
        return
    shown = entries[end]
    start = packages.index(_OWN)
    for place in reversed(range(end)):
        is_between = place >= start and packages[place] in sys.stdlib_module_names
        if packages[place] != _OWN and not is_between:
            frame = entries[place]
            shown = TracebackType(shown, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    error.__traceback__ = shown


def _walk(entry: TracebackType | None) -> Iterator[TracebackType]:
    while entry is not None:
        yield entry
        entry = entry.tb_next
