"""Tell errors that a signal handler of the program has raised, such as a time limit's."""

from __future__ import annotations

import signal
import types
from typing import Any

__all__ = ["is_from_signal_handler"]


def is_from_signal_handler(error: BaseException) -> bool:
    """Return whether a signal handler of this program has raised an error.

    Python runs handlers between any two instructions of the main thread, so their errors appear in
    the library's calls and are not about them.
    """
    codes = set(map(_code_of, map(signal.getsignal, signal.valid_signals()))) - {None}
    trace = error.__traceback__ if codes else None
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


def _code_of(handler: Any) -> types.CodeType | None:
    """Return the code of a handler: of a function, a method, a partial, or a callable object."""
    while hasattr(handler, "func"):
        handler = handler.func
    if not hasattr(handler, "__code__") and not isinstance(handler, (int, type(None))):
        handler = getattr(handler, "__func__", None) or type(handler).__call__
    return getattr(handler, "__code__", None)
