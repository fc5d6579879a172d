"""Tell errors that a signal handler of the program has raised, such as a time limit's."""

from __future__ import annotations

import functools
import signal
import traceback
import types
from collections.abc import Iterator
from typing import Any

__all__ = ["is_from_signal_handler"]


def is_from_signal_handler(error: BaseException) -> bool:
    """Return whether a signal handler of this program has raised an error, or its cause.

    Python runs handlers between any two instructions of the main thread, so their errors appear in
    the library's calls and are not about them. Triton raises errors of its own from what is raised
    while it compiles.
    """
    codes = set(map(_code_of, map(signal.getsignal, signal.valid_signals())))
    return any(
        frame.f_code in codes
        for cause in _causes(error)
        for frame, _ in traceback.walk_tb(cause.__traceback__)
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__


def _code_of(handler: Any) -> types.CodeType | None:
    """Return the code of a handler: of a function, a method, a partial, or a callable object."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    if not isinstance(handler, (types.FunctionType, types.MethodType)):
        handler = type(handler).__call__  # of SIG_DFL and others, a wrapper without code
    return getattr(handler, "__code__", None)
