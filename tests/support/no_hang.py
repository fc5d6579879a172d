"""A guard for code whose time might grow without bound."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["no_hang"]


@contextmanager
def no_hang(seconds: int = 120) -> Iterator[None]:
    """Fail where a block would not end in any reasonable time."""

    def fail(*_: Any) -> None:
        raise AssertionError(f"it did not end in {seconds} seconds")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
