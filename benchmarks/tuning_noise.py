"""Simulate the tuner's choice on devices whose timings are disturbed.

Configs with known true times are tuned by the real tuner and the real rules of the winner; only the
durations of launches are simulated. For each model of noise, the regret is how much slower the
winner truly is than the best config.

    python benchmarks/tuning_noise.py --tunes 200 --out benchmarks/results/tuning-noise.json

With `--milliseconds 20` launches are long, and what disturbs the device is averaged within each.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

os.environ.setdefault("TRITON_INTERPRET", "1")  # No driver is asked for.

import triton

from dejavu_cache.model.record import Measurement, Record
from dejavu_cache.model.scenario import Config, Scenario
from dejavu_cache.model.selection import winner
from dejavu_cache.triton_internals.config_names import DeclaredConfigs
from dejavu_cache.tuning.device_timer import DeviceTimer, Sample, TimedLaunch
from dejavu_cache.tuning.tuner import CandidateLaunch, Tuner

CONFIGS = 40

LOSS = 0.01
"""What a tune of a launch may lose, if nothing else is said."""

SHORT, PART = 0.1, 4.0
"""Milliseconds of the fastest configs' launches, if nothing else is said; and of the parts of long
ones, in each of which the device may be slowed differently."""

CACHE_CLEAR = 0.05
"""Milliseconds that pass between two launches."""

Noise = Callable[[random.Random, float, int], float]
"""Returns the factor of a launch's duration, from a moment (ms) and the config's index."""


def _jitter(rng: random.Random) -> float:
    return rng.gauss(1, 0.01)


def _bursts(share: float, period: float, factor: float) -> Noise:
    """Return a load that recurs regularly and takes a share of the time."""
    threshold = math.cos(math.pi * share)

    def noise(rng: random.Random, moment: float, config: int) -> float:
        is_loaded = math.sin(2 * math.pi * moment / period) > threshold
        return _jitter(rng) * (factor if is_loaded else 1.0)

    return noise


def _drift(slowdown: float, duration: float) -> Noise:
    """Return a clock that falls evenly, or rises where the slowdown is negative."""

    def noise(rng: random.Random, moment: float, config: int) -> float:
        start = 1.0 if slowdown > 0 else 1.0 - slowdown
        return _jitter(rng) * (start + slowdown * min(moment / duration, 1))

    return noise


def _random_states(factors: Sequence[float], mean: float, *, unequal: bool = False) -> Noise:
    """Return a device that stays in a random state for a random time.

    Args:
        factors: the states' slowdowns, equally likely.
        mean: the mean duration of a state, in milliseconds.
        unequal: whether the load slows some configs three times as much as others.
    """
    state = {"end": 0.0, "factor": 1.0}

    def noise(rng: random.Random, moment: float, config: int) -> float:
        if moment >= state["end"]:
            state["factor"] = rng.choice(list(factors))
            state["end"] = moment + rng.expovariate(1 / mean)
        sensitivity = 0.5 + config % 11 / 10 if unequal else 1.0
        return _jitter(rng) * (1 + (state["factor"] - 1) * sensitivity)

    return noise


def _outliers(share: float, factor: float) -> Noise:
    def noise(rng: random.Random, moment: float, config: int) -> float:
        return _jitter(rng) * (factor if rng.random() < share else 1.0)

    return noise


def _both(left: Noise, right: Noise) -> Noise:
    return lambda rng, moment, config: left(rng, moment, config) * right(rng, moment, config)


def _models() -> dict[str, Callable[[], Noise]]:
    """Return the models of noise; each tune gets one of its own."""
    return {
        "steady": lambda: lambda rng, moment, config: _jitter(rng),
        "jitter of 5%": lambda: lambda rng, moment, config: abs(rng.gauss(1, 0.05)),
        "heavy tail": lambda: lambda rng, moment, config: 0.98 + 0.02 * rng.paretovariate(1.2),
        "slow outliers": lambda: _outliers(0.1, 10),
        "fast outliers": lambda: _outliers(0.02, 0.3),
        "clock falls in 30 ms": lambda: _drift(0.3, 30),
        "clock falls in 300 ms": lambda: _drift(0.3, 300),
        "clock rises in 40 ms": lambda: _drift(-0.5, 40),
        "clock falls at once": lambda: (
            lambda rng, moment, config: _jitter(rng) * (1.25 if moment > 100 else 1.0)
        ),
        "short bursts": lambda: _bursts(0.3, 44, 1.5),
        "long bursts": lambda: _bursts(0.33, 190, 1.4),
        "heavy bursts": lambda: _bursts(0.4, 25, 2.5),
        "bursts, falling clock": lambda: _both(_bursts(0.3, 57, 1.5), _drift(0.2, 50)),
        "random bursts": lambda: _random_states((1.0, 1.0, 1.6), 12),
        "mostly loaded": lambda: _random_states((1.0, 1.5, 1.5, 1.5), 12),
        "three clocks": lambda: _random_states((1.0, 1.1, 1.2), 60),
        "load that slows configs unequally": lambda: _random_states(
            (1.0, 1.0, 1.4), 12, unequal=True
        ),
    }


MODELS = _models()


class _SimulatedTimer(DeviceTimer):
    """The device timer, whose launches take simulated times."""

    def __init__(self) -> None:
        super().__init__("events-cold")
        self.latest = 0.0
        self.__dict__["_device"] = self  # In place of the driver's interface.

    def synchronize(self) -> None:
        pass

    def warm_up(self) -> None:
        pass

    def _events(self, launch: TimedLaunch, repetitions: int, warms: bool = True) -> Sample:
        times: list[float] = []
        for _ in range(repetitions):
            launch()
            times.append(self.latest)
        return Sample(times, True)


class _SimulatedAutotuner:
    """What the tuner uses of Triton's autotuner, and of its jit function."""

    def __init__(self, launch: Callable[[int], float]) -> None:
        self.nargs: dict[str, Any] = {}
        self.restore_value: list[str] = []
        self.fn = self
        self._launch = launch
        self.do_bench: Any = _SimulatedTimer()

    def run(self, *, index: int, **_: Any) -> None:
        self.do_bench.latest = self._launch(index)

    def pre_hook(self, arguments: Any) -> None:
        """Do nothing."""

    def post_hook(self, arguments: Any, exception: Any) -> None:
        """Do nothing."""


class SimulatedTune(NamedTuple):
    """A tune of configs whose true times are known.

    Attributes:
        times: the true times by config; the first config is the default.
        record: what the tuner recorded.
        winner: the config that the record selects.
        launches: the number of launches.
    """

    times: dict[Config, float]
    record: Record
    winner: Config
    launches: int


def tune(model: str, seed: int, loss: float = LOSS, fastest: float = SHORT) -> SimulatedTune:
    """Tune configs with random true times, no less than the fastest, under a model of noise."""
    rng, noise = random.Random(seed), MODELS[model]()
    times = [fastest * math.exp(abs(rng.gauss(0, 0.5))) for _ in range(CONFIGS)]
    moment, launches = 0.0, 0

    def launch(index: int) -> float:
        nonlocal moment, launches
        launches += 1
        parts, total = max(round(times[index] / PART), 1), 0.0
        for _ in range(parts):
            moment += (times[index] + CACHE_CLEAR) / parts
            total += noise(rng, moment, index)
        return max(times[index] * total / parts, 1e-5)

    declared = DeclaredConfigs(
        "simulated", [triton.Config({"index": index}) for index in range(CONFIGS)]
    )
    configs = list(declared)
    recorded: dict[Config, Measurement] = {}
    candidates = CandidateLaunch(_SimulatedAutotuner(launch), declared, configs[0], (), {})
    mark: Any = SimpleNamespace(around=lambda config: nullcontext())
    for measurements in Tuner(candidates, mark, loss=loss).tune(configs):
        recorded.update((measured.config, measured) for measured in measurements)
    record = Record(scenario=Scenario(args={"n": 1}), measurements=tuple(recorded.values()))
    best = winner(record, set(declared), configs[0])
    assert best is not None
    return SimulatedTune(dict(zip(configs, times, strict=True)), record, best, launches)


class Outcome(NamedTuple):
    """The outcome of a simulated tune.

    Attributes:
        regret: how much slower the winner truly is than the best config, as a share.
        loss: how much slower it truly is than the default, as a share; negative if it is faster.
        launches: the number of launches.
    """

    regret: float
    loss: float
    launches: int


def simulate(model: str, seed: int, loss: float = LOSS, fastest: float = SHORT) -> Outcome:
    """Tune once, and compare the winner's true time with the best's and the default's."""
    result = tune(model, seed, loss, fastest)
    time, (default, *_) = result.times[result.winner], result.times.values()
    return Outcome(time / min(result.times.values()) - 1, time / default - 1, result.launches)


def summarize(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Return the regrets in percent, and the number of winners slower than the default."""
    regrets = sorted(outcome.regret for outcome in outcomes)
    return {
        "tunes": len(outcomes),
        "regret_mean_percent": round(100 * statistics.mean(regrets), 2),
        "regret_p95_percent": round(100 * regrets[math.ceil(0.95 * len(regrets)) - 1], 2),
        "regret_max_percent": round(100 * regrets[-1], 2),
        "slower_than_default": sum(outcome.loss > 1e-4 for outcome in outcomes),
        "launches_mean": round(statistics.mean(outcome.launches for outcome in outcomes)),
    }


def main() -> None:
    """Simulate all models, and print and write their summaries."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tunes", type=int, default=200)
    parser.add_argument("--loss", type=float, default=LOSS, help="what a race may lose")
    parser.add_argument("--milliseconds", type=float, default=SHORT, help="of the fastest launches")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    results = {}
    for model in MODELS:
        outcomes = [
            simulate(model, seed, args.loss, args.milliseconds) for seed in range(args.tunes)
        ]
        results[model] = summarize(outcomes)
        print(f"{model:34}", json.dumps(results[model]), flush=True)
    if args.out:
        args.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
