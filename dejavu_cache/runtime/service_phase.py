"""Phases of a process that serves requests: warming up, and serving.

While a process serves, no launch benchmarks a config, and none compiles where a compiled kernel
fits. A warm-up is a block of one thread in which both are allowed again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from ..system.notices import logger

_phases: list[Serving] = []
"""The phases of serving that have not ended."""


class _Thread(threading.local):
    may_benchmark: bool | None = None
    """What a block says of this thread's launches, which may compile in it; None outside of one."""


_thread = _Thread()


def is_serving() -> bool:
    """Return whether this thread's launches must neither benchmark nor compile."""
    return bool(_phases) and _thread.may_benchmark is None


def may_benchmark() -> bool:
    """Return whether this thread's launches may benchmark configs, as far as their mode lets."""
    return not _phases if _thread.may_benchmark is None else _thread.may_benchmark


class Serving(AbstractContextManager["Serving"]):
    """Time in which the process serves requests; see `serving`."""

    def __init__(self) -> None:
        """Begin at once."""
        _phases.append(self)

    def end(self) -> None:
        """Let launches benchmark and compile again, as their mode says; a second call is free."""
        if self in _phases:
            _phases.remove(self)

    def __exit__(self, *_: object) -> None:
        """End the phase."""
        self.end()


def serving() -> Serving:
    """Promise that from now on no launch of this process makes a request wait for tuning.

    A scenario without a record takes a fallback and goes on the worklist of the store, in mode
    `tune` too. Where a chosen config is not compiled for a launch's arguments, the launch takes one
    that is. A kernel that was never compiled for such arguments has to be; a warning names it.

    Returns:
        The phase. It lasts until its `end` is called, or the block of its `with` ends, or the
        process ends.

    Example:
        >>> with dejavu_cache.warmup():  # doctest: +SKIP
        ...     engine.run_representative_batches()
        >>> dejavu_cache.serving()  # doctest: +SKIP
    """
    return Serving()


@contextmanager
def warmup() -> Iterator[None]:
    """Let this thread's launches benchmark and compile, as their mode says, also while serving.

    A line in the log (`dejavu_cache`, INFO) tells how long it took. Long tunes show their progress
    as usual.
    """
    start = time.perf_counter()
    with _allow(benchmarks=True):
        yield
    logger.info("warmed up in %.1f s", time.perf_counter() - start)


def without_benchmarks() -> AbstractContextManager[None]:
    """Let this thread's launches compile, but benchmark nothing, whatever their mode."""
    return _allow(benchmarks=False)


@contextmanager
def _allow(*, benchmarks: bool) -> Iterator[None]:
    outer, _thread.may_benchmark = _thread.may_benchmark, benchmarks
    try:
        yield
    finally:
        _thread.may_benchmark = outer


def note_compilation(kernel: str) -> None:
    """Warn that a kernel has to be compiled while the process serves."""
    logger.warning(
        "%s is compiled while requests wait: none of its kernels in memory fits these arguments; "
        "launch it with such arguments before dejavu_cache.serving(), or inside warmup()",
        kernel,
    )
