"""Failures of configs: the config's own, the machine's, and those that end the process."""

from __future__ import annotations

import errno
import re
from collections.abc import Collection, Iterator
from functools import cache

from ..model.record import Failure, Measurement
from ..model.scenario import Config, now
from ..system.provenance import whoami
from ..system.signal_handlers import is_from_signal_handler

__all__ = [
    "BEFORE_LAUNCH",
    "compile_failure_of",
    "device_failure_of",
    "failed_measurement",
    "failure_of",
    "forget_frames",
    "is_out_of_memory",
    "is_repeatable",
]

REPEATABLE = ("compile_error", "ptxas_error")
"""Kinds that count only when they occur twice; a lack of resources is computed, so it recurs."""

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
    if is_from_signal_handler(error):
        return None
    if is_out_of_memory(error) or _is_transient(error):
        return Failure(kind="skipped", reason=_short(error))
    for kind, types in _failures().items():
        if isinstance(error, types):
            return Failure(kind=kind, reason=_short(error))
    if isinstance(error, RuntimeError) and "PassManager::run failed" in str(error):
        return Failure(kind="compile_error", reason=_short(error))
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
    if is_from_signal_handler(error):
        return None
    if isinstance(error, OSError):
        return Failure(kind="skipped", reason=_short(error))
    refused = isinstance(error, (ValueError, AssertionError)) or (
        isinstance(error, KeyError) and "unrecognised" in str(error)
    )
    return failure_of(error) or (
        Failure(kind="compile_error", reason=_short(error)) if refused else None
    )


def device_failure_of(error: BaseException) -> Failure | None:
    """Return the failure of a config that left the device's context unusable, or None."""
    if isinstance(error, RuntimeError) and _LOST_CONTEXT.search(str(error)):
        return Failure(kind="crash", reason=_short(error))
    return None


def failed_measurement(config: Config, failure: Failure, seconds: float = 0.0) -> Measurement:
    """Return a config's failure as a measurement that this machine made now.

    Args:
        config: the config.
        failure: its failure.
        seconds: the time that the measurement took.
    """
    return Measurement(
        config=config, failure=failure, at=now(), by=whoami(), seconds=round(seconds, 3)
    )


def forget_frames(error: BaseException) -> None:
    """Let go of the frames that an error passed, whose variables hold a launch's arguments.

    An error that is kept, and passes a frame that refers to what keeps it, would hold them until
    the garbage collector runs, which does not see how much memory a device has left.
    """
    for cause in _causes(error):
        cause.__traceback__ = None


def is_repeatable(failure: Failure | None) -> bool:
    """Return whether a failure is to be recorded only if a second attempt fails too."""
    return failure is not None and failure.kind in REPEATABLE


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the device had no memory left, which may be different the next time."""
    return type(error).__name__ == "OutOfMemoryError" or "CUDA]: out of memory" in str(error)


def _is_transient(error: BaseException) -> bool:
    """Return whether the host had no memory or disk left, or somebody killed the compiler."""
    if any(_is_full(cause) for cause in _causes(error)):
        return True
    killed = _EXIT_CODE.search(str(error))
    return killed is not None and int(killed[1]) not in OWN_SIGNALS


def _is_full(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or (
        isinstance(error, OSError) and error.errno in FULL_DISK
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Iterate over an error and what it was raised from."""
    cause: BaseException | None = error
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


@cache
def _failures() -> dict[str, tuple[type[BaseException], ...]]:
    from ..triton_internals.upstream import CompilationError, OutOfResources, PTXASError

    return {
        "out_of_resources": (OutOfResources,),
        "ptxas_error": (PTXASError,),
        "compile_error": (CompilationError,),
    }


def _short(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__)[:2000]
