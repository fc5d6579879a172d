"""Measures configs one by one, and keeps each measurement as soon as it is taken."""

from __future__ import annotations

import getpass
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from ..configs import Declared
from ..notices import warn_once
from ..records import Config, Failure, Measurement, now
from .benchmark import failure_of, is_out_of_memory, quantiles_of

__all__ = ["measure_all"]


def measure_all(
    autotuner: Any,
    declared: Declared,
    missing: Iterable[Config],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    keep: Callable[[Measurement], None],
) -> int:
    """Benchmarks configs by Triton's own `Autotuner._bench`, hooks and all.

    Args:
        autotuner: a `triton.runtime.Autotuner` whose `nargs` are this launch's.
        keep: is given each measurement when it is taken, so that whoever kills this process loses one.

    Returns:
        How many were benchmarked. A config for which the device has no memory is skipped and not kept.
    """
    count = 0
    for config in missing:
        start = time.perf_counter()
        timing = _timing(autotuner, declared[config], args, kwargs)
        count += 1
        if timing is None:
            warn_once(f"memory {config}", f"({config}) is skipped: the device has no memory left for it")
            continue
        keep(_measurement(config, timing, time.perf_counter() - start))
    return count


def _timing(autotuner: Any, config: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What the benchmark returned, a `Failure`, or None if memory ran out."""
    raised: list[Exception] = []
    do_bench = autotuner.do_bench

    def observed(kernel_call: Callable[[], Any], quantiles: Sequence[float]) -> Any:
        # Triton turns some errors into an infinite time; their reason is only seen from in here.
        try:
            return do_bench(kernel_call, quantiles=quantiles)
        except Exception as error:
            raised.append(error)
            raise

    autotuner.do_bench = observed
    try:
        timing = autotuner._bench(*args, config=config, **kwargs)
    except Exception as error:
        raised.append(error)
        timing = None
    finally:
        autotuner.do_bench = do_bench
    if not raised:
        return timing
    if is_out_of_memory(raised[-1]):
        return None
    failure = failure_of(raised[-1])
    if failure is None:
        raise raised[-1]
    return failure


def _measurement(config: Config, timing: Any, seconds: float) -> Measurement:
    outcome = timing if isinstance(timing, Failure) else quantiles_of(timing)
    told = {"config": config, "at": now(), "by": _whoami(), "seconds": round(seconds, 3)}
    if isinstance(outcome, Failure):
        return Measurement(**told, failure=outcome)
    median, p20, p80 = outcome
    return Measurement(**told, median=median, p20=p20, p80=p80)


@cache
def _whoami() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"[:200]
