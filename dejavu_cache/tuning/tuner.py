"""Measures configs one by one, and keeps each measurement as soon as it is taken."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..configs import Declared
from ..notices import warn_once
from ..provenance import whoami
from ..records import Config, Failure, Measurement, now
from ..selection import contends
from .benchmark import failure_of, is_out_of_memory, quantiles_of

__all__ = ["Bench"]

ROUNDS = 3
"""How often the configs that are close to the best are measured again, taking turns."""


class Bench:
    """Benchmarks configs on one launch's arguments, by Triton's own `Autotuner._bench`, hooks and all.

    Args:
        autotuner: a `triton.runtime.Autotuner` whose `nargs` are this launch's.
        declared: the configs by name.
    """

    def __init__(self, autotuner: Any, declared: Declared, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._autotuner = autotuner
        self._declared = declared
        self._args = args
        self._kwargs = kwargs

    def measure_all(self, configs: Iterable[Config], keep: Callable[[Measurement], None]) -> list[Measurement]:
        """Measures each config once.

        Args:
            keep: is given each measurement when it is taken, so that whoever kills this process loses one.

        Returns:
            What was measured. A config for which the device has no memory is skipped and not kept.
        """
        taken = []
        for config in configs:
            measurement = self._measure(config)
            if measurement is None:
                warn_once(f"memory {config}", f"({config}) is skipped: the device has no memory left for it")
                continue
            keep(measurement)
            taken.append(measurement)
        return taken

    def repeat(self, taken: Sequence[Measurement], keep: Callable[[Measurement], None]) -> None:
        """Measures the contenders again, taking turns, and keeps the medians of all their rounds.

        One after the other, each config meets another clock and another temperature; in turns they meet the same.
        """
        timed = [each for each in taken if each.median is not None]
        best = min(timed, key=lambda each: each.median or 0.0, default=None)
        rounds = {each.config: [each] for each in timed if best and contends(each, best)}
        if len(rounds) < 2:
            return
        for _ in range(ROUNDS):
            for config, measurements in rounds.items():
                again = self._measure(config)
                if again is not None and again.median is not None:
                    measurements.append(again)
        for measurements in rounds.values():
            keep(_pooled(measurements))

    def _measure(self, config: Config) -> Measurement | None:
        start = time.perf_counter()
        timing = self._timing(config)
        return None if timing is None else _measurement(config, timing, time.perf_counter() - start)

    def _timing(self, config: Config) -> Any:
        """What the benchmark returned, a `Failure`, or None if memory ran out."""
        raised: list[Exception] = []
        do_bench = self._autotuner.do_bench

        def observed(kernel_call: Callable[[], Any], quantiles: Sequence[float]) -> Any:
            # Triton turns some errors into an infinite time; their reason is only seen from in here.
            try:
                return do_bench(kernel_call, quantiles=quantiles)
            except Exception as error:
                raised.append(error)
                raise

        timing = None
        self._autotuner.do_bench = observed
        try:
            timing = self._autotuner._bench(*self._args, config=self._declared[config], **self._kwargs)
        except Exception as error:
            raised.append(error)
        finally:
            self._autotuner.do_bench = do_bench
        if not raised:
            return timing
        if is_out_of_memory(raised[-1]):
            return None
        failure = failure_of(raised[-1])
        if failure is None:
            raise raised[-1]
        return failure


def _pooled(measurements: Sequence[Measurement]) -> Measurement:
    def middle(name: str) -> float | None:
        values = [value for each in measurements if (value := getattr(each, name)) is not None]
        return statistics.median(values) if values else None

    update = {name: middle(name) for name in ("median", "p20", "p80")}
    seconds = sum(each.seconds for each in measurements)
    return measurements[-1].model_copy(update={**update, "seconds": round(seconds, 3)})


def _measurement(config: Config, timing: Any, seconds: float) -> Measurement:
    outcome = timing if isinstance(timing, Failure) else quantiles_of(timing)
    told = {"config": config, "at": now(), "by": whoami(), "seconds": round(seconds, 3)}
    if isinstance(outcome, Failure):
        return Measurement(**told, failure=outcome)
    median, p20, p80 = outcome
    return Measurement(**told, median=median, p20=p20, p80=p80)
