"""Gaussian processes over configs' slowdowns and times: what is expected, and how far it is off.

What is modelled is the logarithm of a config's time over the best one's in its scenario. Two points
are alike as far as their configs, scenarios and launches are; each likeness is a Matérn kernel
(Rasmussen and Williams, Gaussian Processes for Machine Learning, 4.2) and they are joined by sums
and products. Scales were chosen on exhaustive measurements of other scenarios than those by which
`benchmarks/prediction.py` judges; `ELSEWHERE`, `EVENNESS`, `LIKELY`, `HICCUP` and times' on these.
"""

from __future__ import annotations

import ctypes
import math
import random
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import numpy as np

from ..model.record import Record
from ..model.scenario import Config, Environment, Scenario
from ..model.selection import is_credible
from ..model.worth import Saving
from ..system.fork_lock import ForkLock
from .features import Matrix, Numbers, Point, Points, encode

MOST_POINTS = 800
"""Measurements that a model is fitted to: 800 take some 30 ms, twice as many eight times that."""

EVENNESS = 0.1
"""Added to slowdowns before configs are drawn by their inverse: the more, the more evenly."""

SLOW = 1.2
"""Logarithm of a slowdown beyond which nothing matters; a config that fails has it."""

BY_CONFIG, BY_SCENARIO, BY_CLOSE_CONFIG, BY_LAUNCH = 0.15, 0.3, 0.05, 0.4
"""Variances that likeness explains: of configs in all scenarios, of configs in like scenarios, of
nearly equal configs in those, and of launches that use the GPU alike."""

CONFIG_SCALE, SCENARIO_SCALE, LAUNCH_SCALE, UNMEASURED_LAUNCH_SCALE = 2.5, 3.0, 1.0, 3.0
"""Distances over which points of these kinds stay alike, in standard deviations of their values.
The last was chosen on half of these scenarios; tunes, which learn from measurements, lost more."""

ELSEWHERE = 0.99
"""Correlation of two GPU models, or of two versions of Triton."""

BY_ITSELF = 0.003
"""Variance of what a config has in common with itself alone, in the same scenario elsewhere."""

LEVEL = 0.05
"""Variance of what all configs of a scenario have in common: its best may be exceptionally good."""

UNKNOWN_LEVEL = 0.3
"""The same of the scenario in question, whose best time is unknown."""

NOISE = 0.0003
"""Variance of a recorded slowdown beside another process's."""

MEASURED_NOISE = 0.0004
"""Variance of one of the scenario in question: all are of one process and one moment."""

SURELY, LIKELY = 1.64, 1.28
"""Standard deviations: the bound of what a tune saves is 95% sure, and a config that runs without
a measurement is 90% sure to be faster than the default."""

TIME_SCALE, BY_LINE, TIME_NOISE = 4.5, 0.05, 0.01
"""Of the logarithms of one config's times: the distance over which they stay alike, and variances
of a line over sizes and of noise, beside 1 of likeness."""

HICCUP = 6.0
"""By how many times the usual error a slowdown is above what all others say if it is not believed:
a host that hesitates lengthens launches of some microseconds, seldom, and up to hundredfold."""

LONGEST = 20.0
"""Logarithm of a time in milliseconds, five days, beyond which none is believed."""

TOGETHER = 2**13
"""Covariances that are computed together."""

TRUST = 4
"""Measurements that say as much of the errors as what was believed of them before."""

DOUBT = 5.0
"""By how much less is believed of records than of measurements alone when a tune might end: what is
measured first is what they call fast, and some of that is. When the likelier of both decided alone,
wrong records ended 16 of 420 tunes too early, one at three times the best's time."""

# NumPy's module that calls BLAS, or the program where no file is known of that module.
_BLAS = ctypes.CDLL(getattr(getattr(np.linalg, "_umath_linalg", None), "__file__", None))
_counting = ForkLock()
"""Held while NumPy has one thread, so that the number before is restored."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Have NumPy's OpenBLAS use no other core: all of its threads wait while one is busy.

    Beside a C compiler on two busy cores, models took 0.6 s with two threads, and 0.1 with one.
    """
    with _counting, ExitStack() as at_end:
        for name in ("scipy_openblas_{}_num_threads64_", "openblas_{}_num_threads64_"):
            if hasattr(_BLAS, name.format("set")):
                set_count = getattr(_BLAS, name.format("set"))
                at_end.callback(set_count, getattr(_BLAS, name.format("get"))())
                set_count(1)
        yield


KnownRecord = tuple[Environment, Record]
"""A scenario's record, and where it was measured."""


def expect_saving(
    asked: Point, rivals: Mapping[Config, int | None], records: Sequence[KnownRecord]
) -> Saving | None:
    """Predict what launches save once tuned, by their config's times and its rivals' slowdowns.

    None: no record has a time of the config.
    """
    points, times, seconds = list[Point](), list[float](), list[float]()
    for environment, record in records:
        own = record.by_config.get(asked.config)
        if own is None or not is_credible(own):
            continue
        programs = own.resources.programs if own.resources else None
        points.append(Point(environment, record.scenario, asked.config, programs))
        times.append(math.log(own.median or 0.0))
        seconds.append(sum(entry.seconds for entry in record.measurements))
    if not points:
        return None
    time, error = _expect_last([*points, asked], np.array(times))
    configs = {asked.config: asked.programs} | dict(rivals)
    gains, errors = SlowdownModel(*asked[:2], configs, records).gains_over(asked.config)
    best = int(gains.argmax())
    return Saving(
        expected=_time_lost(time, gains[best]),
        at_least=_time_lost(time - SURELY * error, gains[best] - SURELY * errors[best]),
        takes=min(statistics.median(seconds), math.exp(LONGEST)),
    )


def _time_lost(time: float, slowdown: float) -> float:
    """Return what a launch saves by the logarithms of its time and of its slowdown."""
    return math.exp(min(time, LONGEST)) * (1 - math.exp(-max(slowdown, 0.0)))


def _expect_last(points: Sequence[Point], measured: Matrix) -> tuple[float, float]:
    """Return the expected logarithm of a config's time at the last point, by all others'."""
    encoded = encode(points, {})
    values = np.hstack([encoded.scenarios[encoded.scenario_numbers], encoded.launches])
    alike = 1 + BY_LINE * values @ values.T + matern(values, values, TIME_SCALE)
    alike *= np.where(np.equal.outer(encoded.machines, encoded.machines), 1.0, ELSEWHERE)
    gram, across = alike[:-1, :-1] + TIME_NOISE * np.eye(len(measured)), alike[:-1, -1]
    weights, center = np.linalg.solve(gram, across), measured.mean()
    residuals = measured - center
    surprise = residuals @ np.linalg.solve(gram, residuals)
    spread = (TRUST + surprise) / (TRUST + len(measured))
    variance = max(alike[-1, -1] - weights @ across, 0.0) + TIME_NOISE
    return float(center + weights @ residuals), math.sqrt(variance * spread)


class Belief(NamedTuple):
    """What is expected of the configs before any is measured.

    Attributes:
        mean: the logarithm of each config's slowdown.
        covariance: [configs, configs].
        spread: the factor by which variances were too small elsewhere.
    """

    mean: Matrix
    covariance: Matrix
    spread: float

    def after(self, looks: Mapping[int, float]) -> tuple[Matrix, Matrix, float]:
        """Return what is expected once configs were measured, given by their numbers.

        Returns:
            The logarithm of each config's slowdown, its standard deviation, and the logarithm of
            the looks' probability density, up to a constant.
        """
        variance = self.covariance.diagonal() + UNKNOWN_LEVEL
        seen = np.fromiter(looks, int)
        across = self.covariance[:, seen] + UNKNOWN_LEVEL
        gram = across[seen] + MEASURED_NOISE * np.eye(len(seen))
        weights = np.linalg.solve(gram, across.T)
        residuals = np.fromiter(looks.values(), float) - self.mean[seen]
        surprise = float(residuals @ np.linalg.solve(gram, residuals))
        spread = (TRUST * self.spread + surprise) / (TRUST + len(seen))
        explained = np.einsum("ij,ji->i", across, weights)
        errors = np.sqrt(np.maximum(variance - explained, 1e-9) * spread)
        size = np.linalg.slogdet(gram)[1] + len(seen) * math.log(spread)
        evidence = -(surprise / spread + float(size)) / 2
        return self.mean + residuals @ weights, errors, evidence


class SlowdownModel:
    """What records say of a scenario's configs, and what measuring some of them adds.

    Args:
        environment: GPU, Triton and what else a timing depends on.
        scenario: the scenario in question.
        configs: its configs, by the programs that a launch of each runs; None where unknown.
        records: those of the kernel, of any scenario and GPU; none at all will do.
        unmeasured: whether no config will be measured.
    """

    @one_thread()
    def __init__(
        self,
        environment: Environment,
        scenario: Scenario,
        configs: Mapping[Config, int | None],
        records: Sequence[KnownRecord] = (),
        *,
        unmeasured: bool = False,
    ) -> None:
        """Fit the model."""
        self.configs = [*configs]
        self._index = {config: index for index, config in enumerate(self.configs)}
        self.measured: dict[int, float] = {}  # infinite for a config that failed
        entries = [entry for _, record in records for entry in record.measurements]
        resources = {entry.config: entry.resources for entry in entries if entry.resources}
        learned, slowdowns = _sample(records, scenario, self._index)
        asked = [Point(environment, scenario, config, configs[config]) for config in self.configs]
        points, known = encode([*learned, *asked], resources), len(learned)
        joint = covariance(points, UNMEASURED_LAUNCH_SCALE if unmeasured else LAUNCH_SCALE)
        before = joint[known:, known:]
        self._beliefs = [Belief(np.zeros(len(asked)), before, 1.0)]
        if learned:
            center = slowdowns.mean()
            gram, across = joint[:known, :known], joint[:known, known:]
            tables = (points.machines * len(points.scenarios) + points.scenario_numbers)[:known]
            gram.flat[:: known + 1] += NOISE
            gram[np.equal.outer(tables, tables)] += LEVEL
            residuals = slowdowns - center
            inverse = _without_hiccups(np.linalg.inv(gram), residuals)
            weights, surprise = inverse @ across, float(residuals @ inverse @ residuals)
            spread = (TRUST + surprise) / (TRUST + known)
            after = Belief(center + residuals @ weights, before - across.T @ weights, spread)
            self._beliefs.insert(0, after)

    def note(self, config: Config, median: float | None) -> None:
        """Take in a measurement of the scenario in question, in milliseconds; None: it failed."""
        self.measured[self._index[config]] = median or math.inf

    def _looks(self) -> dict[int, float]:
        """Return the measured slowdowns' logarithms by the number of the config."""
        best = min(self.measured.values(), default=math.inf)
        if best == math.inf:
            return {}
        return {
            index: min(math.log(max(time, 1e-9) / max(best, 1e-9)), SLOW)
            for index, time in self.measured.items()
        }

    @one_thread()
    def propose(self, count: int) -> list[Config]:
        """Return the configs to measure next, the most promising first.

        Each is the one of the largest expected improvement (Jones et al., 1998) if those before it
        turn out as expected.
        """
        looks, chosen = self._looks(), list[Config]()
        failed = {index for index, time in self.measured.items() if time == math.inf}
        for _ in range(min(count, len(self.configs) - len(self.measured))):
            posteriors = [belief.after(looks) for belief in self._beliefs]
            # The belief counts under which the looks are likelier, once they say something.
            posteriors.sort(key=lambda posterior: -posterior[2] * (len(looks) >= TRUST))
            expected, errors, _ = posteriors[0]
            best = min(looks.values(), default=None)
            merit = -expected if best is None else improvement(best - expected, errors)
            merit[[*looks, *failed]] = -math.inf
            index = int(merit.argmax())
            looks[index] = float(expected[index])
            chosen.append(self.configs[index])
        return chosen

    def outdo(self, default: Config, others: Collection[Config]) -> tuple[Config, float] | None:
        """Return the config to run if none can be measured, and its expected gain as a share.

        Of the others that are likely faster than the default, it is the one that is expected to be
        the fastest. None: there is none, or nothing is known.
        """
        gains, errors = self.gains_over(default)
        may_run = np.array([config in others for config in self.configs])
        likely = np.where(may_run & (gains > LIKELY * errors), gains, -math.inf)
        best = int(likely.argmax())
        return (self.configs[best], 1 - math.exp(-gains[best])) if likely[best] > 0 else None

    def gains_over(self, config: Config) -> tuple[Matrix, Matrix]:
        """Return the logarithms of a config's time over each one's, and their errors."""
        expected, joint, spread = self._beliefs[0]
        own = self._index[config]
        variance = joint[own, own] + joint.diagonal() - 2 * joint[own]
        return expected[own] - expected, np.sqrt(np.maximum(variance, 1e-9) * spread)

    @one_thread()
    def chance_left(self, gain: float) -> float:
        """Bound the probability that a config that was not measured wins by more than `gain`.

        What is expected with the records, and without them, counts by how likely it makes what was
        measured here: those that are wrong spare nothing.

        Args:
            gain: a share of the best measured time.
        """
        left = [index for index in range(len(self.configs)) if index not in self.measured]
        if not (looks := self._looks()):
            return 1.0
        chances, evidence = list[float](), list[float]()
        for belief in self._beliefs:
            expected, errors, density = belief.after(looks)
            ratios = (math.log(1 - gain) - expected[left]) / errors[left]
            chances.append(float(_below(ratios).sum()))
            evidence.append(density)
        doubts = DOUBT ** np.arange(len(chances))
        weights = doubts * np.exp(np.array(evidence) - max(evidence))
        return float(weights @ np.minimum(doubts * chances, 1.0) / weights.sum())


def _without_hiccups(inverse: Numbers, residuals: Matrix) -> Matrix:
    """Return an inverse covariance without points that are too slow by all others (ibid., 5.4)."""
    errors = inverse @ residuals / np.sqrt(inverse.diagonal())
    out = np.flatnonzero(errors > HICCUP * statistics.median(abs(errors)))
    return inverse - inverse[:, out] @ np.linalg.solve(inverse[np.ix_(out, out)], inverse[out])


def _sample(
    records: Iterable[KnownRecord], scenario: Scenario, configs: Collection[Config]
) -> tuple[list[Point], Matrix]:
    """Return what a model of some configs learns from, and the logarithms of the slowdowns.

    Of too many points, those of the scenario in question stay, and others are drawn, mostly fast.
    """
    points: list[tuple[Point, float]] = []
    for environment, record in records:
        best = min((e.median or 0.0 for e in record.measurements if is_credible(e)), default=0.0)
        for entry in record.measurements if best else ():
            is_known = is_credible(entry) if entry.failure is None else not entry.skipped
            if entry.config not in configs or not is_known:
                continue
            slowdown = math.log(entry.median / best) if entry.median else SLOW
            programs = entry.resources.programs if entry.resources else None
            point = Point(environment, record.scenario, entry.config, programs)
            points.append((point, min(slowdown, SLOW)))
    if len(points) > MOST_POINTS:
        drawn = random.Random(0)
        points.sort(key=lambda p: (p[0].scenario != scenario, drawn.random() * (EVENNESS + p[1])))
        del points[MOST_POINTS:]
    return [point for point, _ in points], np.array([slowdown for _, slowdown in points])


def covariance(points: Points, launch_scale: float) -> Matrix:
    """Return the covariance of slowdowns [points, points] before anything is measured.

    Some rows at a time: new pages for large arrays took 40 of a model's 50 ms.
    """
    configs, scenarios = points.config_numbers, points.scenario_numbers
    pairs = configs * len(points.scenarios) + scenarios
    alike = matern(points.configs, points.configs, CONFIG_SCALE)[:, configs]
    close = matern(points.configs, points.configs, CONFIG_SCALE / 3)[:, configs]
    in_scenario = BY_SCENARIO * alike + BY_CLOSE_CONFIG * close
    in_launch = BY_LAUNCH * matern(points.configs, points.configs, CONFIG_SCALE * 1.5)[:, configs]
    like_scenarios = matern(points.scenarios, points.scenarios, SCENARIO_SCALE)[:, scenarios]
    total = np.empty((len(pairs), len(pairs)))
    step = max(TOGETHER // len(pairs), 1)
    for rows in (slice(start, start + step) for start in range(0, len(pairs), step)):
        part = in_scenario[configs[rows]]
        part *= like_scenarios[scenarios[rows]]
        part += BY_CONFIG * alike[configs[rows]]
        launches = matern(points.launches[rows], points.launches, launch_scale)
        part += launches * in_launch[configs[rows]]
        part += BY_ITSELF * np.equal.outer(pairs[rows], pairs)
        part[np.not_equal.outer(points.machines[rows], points.machines)] *= ELSEWHERE
        total[rows] = part
    return total


def matern(left: Matrix, right: Matrix, scale: float) -> Matrix:
    """Return the Matérn kernel of smoothness 3/2 [left, right]."""
    squared = (left**2).sum(1)[:, None] + (right**2).sum(1)[None] - 2 * left @ right.T
    distance = np.sqrt(np.maximum(squared, 0.0)) / scale
    result: Matrix = (1 + distance) * np.exp(-distance)
    return result


def improvement(gain: Matrix, errors: Matrix) -> Matrix:
    """Return the expectation of what is gained, where that is positive."""
    ratio = gain / errors
    density: Matrix = np.exp(-(ratio**2) / 2) / math.sqrt(2 * math.pi)
    return gain * _below(ratio) + errors * density


def _below(ratio: Matrix) -> Matrix:
    """Return the normal distribution's share below a number of standard deviations."""
    return np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in ratio])
