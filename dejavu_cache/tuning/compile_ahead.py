"""Compile many configs of one launch at once, or the kernels of many launches, before any runs.

Configs that cannot run fail here. Their failures are told apart: the config's own, the machine's,
and those that end the process.
"""

from __future__ import annotations

import errno
import math
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ..model.record import Failure, Measurement
from ..model.scenario import Config, now
from ..system.background_threads import causes_of, let_signals_through, start_thread
from ..system.notices import whoami
from ..triton_internals.compilation import (
    await_kernel,
    build_launcher,
    compiling_in,
    forget_failed,
    keys_in_memory,
    load_binary,
    may_compile_in_threads,
)
from ..triton_internals.environment import await_digest
from ..triton_internals.hooks import retry_parsing
from ..triton_internals.identity import find_jit_function

if TYPE_CHECKING:
    from .tuner import CandidateLaunch

BEFORE_LAUNCH = ("compile_error", "out_of_resources", "ptxas_error")
"""Kinds of failures that are raised before the kernel runs."""

OWN_SIGNALS = frozenset({4, 6, 8, 11})
"""Signals that a compiler raises by its own fault: SIGILL, SIGABRT, SIGFPE and SIGSEGV."""

FULL_DISK = (errno.ENOSPC, errno.EDQUOT)

_EXIT_CODE = re.compile(r"error code:? -(\d+)")

_LOST_CONTEXT = re.compile(
    "illegal memory access|memory access fault|unspecified launch failure|misaligned address"
    "|device-side assert|illegal instruction|hardware stack error|invalid program counter"
    "|invalid address space|launch timed out",
    re.IGNORECASE,
)
"""Errors of CUDA and HIP after which every later call in the process fails too."""


def failure_of(error: BaseException) -> Failure | None:
    """Return the failure to record for a benchmark's error, or None if it is not the config's."""
    let_signals_through(error)
    from ..triton_internals.versions import CompilationError, OutOfResources, PTXASError

    reason = _short(error)
    if is_out_of_memory(error) or _is_transient(error):
        return Failure(kind="skipped", reason=reason)
    if isinstance(error, OutOfResources):
        return Failure(kind="out_of_resources", reason=reason)
    if isinstance(error, PTXASError):
        return Failure(kind="ptxas_error", reason=reason)
    has_failed = isinstance(error, RuntimeError) and "PassManager::run failed" in str(error)
    if has_failed or isinstance(error, CompilationError):
        return Failure(kind="compile_error", reason=reason)
    return None


def compile_failure_of(error: BaseException, passed: Collection[str] = ()) -> Failure | None:
    """Return the failure to record for an error of a compilation, or None.

    Unlike a launch, a compilation also raises for options that the device does not have, and errors
    of the operating system are the compiler's. What the caller has mistyped is no config's failure.

    Args:
        error: the error.
        passed: keywords of the launch that are neither the kernel's nor the config's.
    """
    if isinstance(error, (AssertionError, KeyError)) and passed:
        names = "|".join(map(re.escape, passed))
        if re.search(rf"\b(?:{names})\b", str(error)):
            return None
    let_signals_through(error)
    if isinstance(error, OSError):
        return Failure(kind="skipped", reason=_short(error))
    refused = isinstance(error, (ValueError, AssertionError)) or (
        isinstance(error, KeyError) and "unrecognised" in str(error)
    )
    failure = Failure(kind="compile_error", reason=_short(error)) if refused else None
    return failure_of(error) or failure


def device_failure_of(error: BaseException) -> Failure | None:
    """Return the failure of a config that left the device's context unusable, or None."""
    if isinstance(error, RuntimeError) and _LOST_CONTEXT.search(str(error)):
        return Failure(kind="crash", reason=_short(error))
    return None


def failed_measurement(config: Config, failure: Failure, seconds: float = 0.0) -> Measurement:
    """Return a config's failure as a measurement that this machine made now."""
    return Measurement(
        config=config, failure=failure, at=now(), by=whoami(), seconds=round(seconds, 3)
    )


def forget_frames(error: BaseException) -> None:
    """Let go of the frames that an error passed, whose variables hold a launch's arguments.

    An error that is kept, and passes a frame that refers to what keeps it, would hold them until
    the garbage collector runs, which does not see how much memory a device has left. What a signal
    handler raised, which only its frames show, is raised again.
    """
    let_signals_through(error)
    for cause in causes_of(error, contexts=True):
        cause.__traceback__ = None


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the device had no memory left, which may be different the next time."""
    return type(error).__name__ == "OutOfMemoryError" or "CUDA]: out of memory" in str(error)


def _is_transient(error: BaseException) -> bool:
    """Return whether the host had no memory or disk left, or somebody killed the compiler."""
    for cause in causes_of(error, contexts=True):
        if isinstance(cause, MemoryError) or getattr(cause, "errno", None) in FULL_DISK:
            return True
    killed = _EXIT_CODE.search(str(error))
    return killed is not None and int(killed[1]) not in OWN_SIGNALS


def _short(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__)[:2000]


MOST_THREADS = 16
"""Most threads that compile.

Each holds the interpreter's lock for about a tenth of its time: more would wait for each other.
"""


@dataclass
class Candidate:
    """A config that is compiled in the background.

    Attributes:
        config: the `triton.Config`.
        kernel: what Triton's asynchronous compilation returned, or its error.
    """

    config: Any
    kernel: Any

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to wait for."""
        future = getattr(self.kernel, "future", None)
        return future is None or future.done()

    def check(self) -> None:
        """Wait for the compiler and load the binary, as `load_binary` does.

        Raises:
            Exception: what Triton raises where the config cannot run.
        """
        if isinstance(self.kernel, Exception):
            raise self.kernel
        load_binary(self.kernel)

    def finish(self) -> None:
        """Wait for the compiler, after which Triton has the kernel; leave a failure to `check`."""
        try:
            await_kernel(self.kernel)
        except Exception as error:
            forget_frames(error)
            self.kernel = error  # Triton 3.9 raises it once


@contextmanager
def compiling_threads(
    threads: int, name: str = "dejavu-cache compile"
) -> Iterator[Executor | None]:
    """Yield threads to compile in; None where Triton has no such mode.

    The passes, LLVM and ptxas release the interpreter's lock, so threads suffice. There are none
    under the interpreter, or while launches compile in others. Compilations that have not started
    when the context ends are cancelled.
    """
    await_digest()
    if not may_compile_in_threads():
        yield None
        return
    retry_parsing()
    pool = ThreadPoolExecutor(threads_for(threads), name)
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def compile_ahead(
    launch: CandidateLaunch, configs: Sequence[Config]
) -> Iterator[dict[Config, Candidate | None]]:
    """Compile configs in the background by Triton's own asynchronous compilation.

    Those that take longest begin early: else one of them would run alone at the end. The default
    config begins first, since the others are compared with it. Compilations that have not started
    when the context ends are cancelled.

    Yields:
        The candidates by config, in order; None where the first launch compiles the config, since
        there is no asynchronous compilation.
    """
    candidates: dict[Config, Candidate | None] = dict.fromkeys(configs)
    try:
        with compiling_threads(len(configs)) as pool:
            if pool is not None:
                with compiling_in(pool):
                    function = find_jit_function(launch.autotuner)
                    is_new = function is not None and not any(keys_in_memory(function).values())
                    for config in sorted(configs, key=partial(_order, launch)):
                        candidates[config] = submit(launch, launch.declared[config])
                        if is_new:  # else Triton builds it, by a C compiler, after compiling
                            is_new = False
                            keywords = {**launch.kwargs, **launch.declared[config].all_kwargs()}
                            build = partial(build_launcher, function, launch.args, keywords)
                            start_thread(build, "dejavu-cache launcher")
            yield dict(candidates)
    finally:
        for candidate in filter(None, candidates.values()):
            candidate.finish()
        if any(candidates.values()):
            forget_failed(find_jit_function(launch.autotuner))


def _order(launch: CandidateLaunch, config: Config) -> tuple[bool, float]:
    """Return the key by which configs are sorted: the default, and then the largest tiles."""
    return config != launch.default, -_tile_of_a_warp(launch.declared[config])


def _tile_of_a_warp(config: Any) -> float:
    """Return the product of a config's sizes per warp, with which the time to compile grows."""
    sizes = [value for value in config.kwargs.values() if type(value) is int and value > 0]
    warps = config.num_warps if type(config.num_warps) is int else 0
    return float(math.log2(math.prod(sizes)) - math.log2(max(warps, 1)))


def submit(launch: CandidateLaunch, config: Any) -> Candidate:
    """Bind the arguments as a launch would, its hook included, and compile in the pool."""
    current = {**launch.kwargs, **config.all_kwargs()}
    if config.pre_hook is not None:
        config.pre_hook({**launch.autotuner.nargs, **current})
    try:
        kernel = launch.autotuner.fn.run(*launch.args, **{**current, "warmup": True})
    except Exception as error:
        forget_frames(error)
        kernel = error
    return Candidate(config, kernel)


def threads_for(configs: int) -> int:
    """Return the number of threads to compile a number of configs with."""
    return max(min(len(os.sched_getaffinity(0)), MOST_THREADS, configs), 1)


_begun: ContextVar[dict[Any, tuple[Any, Any]] | None] = ContextVar("begun", default=None)
"""Kernels that are being compiled and what Triton returned, by their launches; None outside."""


@contextmanager
def compile_together() -> Iterator[dict[Any, tuple[Any, Any]] | None]:
    """Have launches compile their kernels, several at a time, and run nothing.

    Launches count that ask `begins_compilation`. Kernels that fail to compile are left to the
    launches that follow, which raise it.

    Yields:
        What grows by each launch that may need another kernel than those before it; None under the
        interpreter, which would run them.
    """
    begun: dict[Any, tuple[Any, Any]] = {}
    token = _begun.set(begun)
    try:
        with compiling_threads(MOST_THREADS) as pool:
            if pool is None:
                yield None
                return
            with compiling_in(pool):
                yield begun
            for _, compiled in begun.values():
                try:
                    await_kernel(compiled)  # Triton has the kernel from then on
                except Exception as error:
                    let_signals_through(error)
    finally:
        _begun.reset(token)
        for function, _ in begun.values():
            forget_failed(function)


def is_compiling_only() -> bool:
    """Return whether launches are within `compile_together`, so that meta tensors will do."""
    return _begun.get() is not None


def begins_compilation(
    kernel: Any, grid: Any, args: Sequence[Any], kwargs: Mapping[str, Any], form: Any = None
) -> bool:
    """Return whether launches are only compiled now, and begin that for this one.

    `form` is what its compiled kernel depends on, if that is known.
    """
    begun = _begun.get()
    if begun is None or (form is not None and form in begun):
        return begun is not None
    compiled = kernel.run(*args, grid=grid, warmup=True, **kwargs)
    begun[form or object()] = find_jit_function(kernel), compiled
    if callable(grid):  # later launches may read what it notes
        config = getattr(kernel, "best_config", None)
        named = dict(zip(kernel.arg_names, args, strict=False))
        grid({**named, **kwargs, **(config.all_kwargs() if config else {})})
    return True
