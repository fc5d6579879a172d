"""Race the fastest configs of a screening, as long as the device's steadiness demands.

The configs take short turns in random order, so that all meet the same clock, temperature and
neighbours, and no rhythm of a load favours one. From the turns, the configs' times are estimated
together with the device's slowness at each moment. Configs that are behind leave. The race ends
once the others are decided.

One screening says how fast a config is where the device repeats its timings. Where the first round
differs from it, all configs that may be fast enter the race.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import NamedTuple

from ..model.record import Confidence, Measurement
from ..model.scenario import Config, now
from ..model.selection import NOISE

HOPELESS = 3.0
"""A config that takes this many times the best's time is timed only once."""

FINALISTS = 12
"""Most configs in a race on a device that repeats its timings."""

FINALIST = 0.15
"""Slowdown against the best, after one round, up to which a config stays in such a race."""

STEADY = 1.08
"""Ratio of two timings of one config up to which a device repeats its timings.

A GPU that is busy with nothing else stays within it once its clock has settled.
"""

SURVEYED = 1.8
"""Slowdown against the best up to which a config enters a race on a device that does not.

The ratio of two timings of one config multiplies it.
"""

LEAST_ROUNDS, MOST_ROUNDS = 5, 50
"""Rounds before configs are judged on a device that repeats its timings, and of any race."""

PATIENCE = 10
"""Rounds after which configs are judged on a device that does not, in which many tell its level."""

STAGE = 1.35
"""Ratio of the rounds after which configs are judged to those of the judgement before."""

CAUTION = 2.0
"""Multiple of a ratio's error up to which a config may still be the fastest."""

LEAST_RACING = 3
"""Configs that stay while the fastest is not decided: the device's level shows by several only."""

RESOLUTION = 0.001
"""Milliseconds by which two timings of one config may differ: events count half a microsecond."""

BEHIND = 1 + 2 * NOISE
"""Least ratio to the winner's time at which a config that left the race is recorded."""

PARTS = 5
"""Parts of a race, of which each estimate leaves out another, to learn how far they agree."""

STUDENT = {2: 6.31, 3: 2.92, 4: 2.35, 5: 2.13}
"""Half of an interval that holds 90%, in standard errors, by the number of parts."""

DEPENDENCE = 1.5
"""Factor by which errors are larger than the jackknife says, since what loads a device lasts."""

NEIGHBOURS = 1
"""Turns before and after one from which the level of its moment is estimated: 3 take some 5 ms."""

REFINEMENTS = 3
"""Repetitions of the estimate of levels and times from each other."""

QUIET = 0.2
"""Share of the turns of a round, or of a config, that are taken to have met a quiet moment."""


class Look(NamedTuple):
    """The time of one config at one moment, in milliseconds."""

    config: Config
    time: float


Rounds = Sequence[Sequence[Look]]
"""Looks at the same configs once per round, in the order in which they were taken."""

Times = dict[Config, float]
"""Times of configs, relative to the fastest one's."""


@dataclass(eq=False)
class Race:
    """A comparison of the configs that a screening found fast.

    Args:
        screened: the measurements of the screening, in its order.
        default: the config that the winner must not be slower than.
        until: when to stop, in seconds of `time.monotonic`; the first round is run in any case.
        loss: the share by which the winner may be slower than another config. 0: the race goes on
            until equally fast ones are told apart, as far as the device lets them.
    """

    screened: Mapping[Config, Measurement]
    default: Config
    until: float = math.inf
    loss: float = 0.0
    _turns: dict[Config, list[Measurement]] = field(default_factory=dict, init=False)
    _rounds: list[list[Look]] = field(default_factory=list, init=False)
    _racing: list[Config] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        """Measure nothing yet."""
        self._times = {name: look.median for name, look in self.screened.items() if look.median}
        self._random = random.Random(len(self.screened))

    def turns(self) -> Iterator[Config]:
        """Yield configs, each of which is measured and passed to `note` before the next one."""
        default = [self.default] if self.default in self._times else []
        self._enter(self._within(HOPELESS)[:FINALISTS] + default)
        is_steady, judged_after = True, LEAST_ROUNDS
        while len(self._racing) > 1 and len(self._rounds) < MOST_ROUNDS:
            self._rounds.append([])
            yield from self._random.sample(self._racing, len(self._racing))
            ran = dict(self._rounds[-1])  # those that fail leave
            self._racing = [config for config in self._racing if config in ran]
            if len(self._racing) < 2 or monotonic() > self.until:
                break
            if is_steady and (spread := self._unevenness()) > STEADY:
                is_steady, judged_after = False, len(self._rounds) + PATIENCE
                self._enter([*self._racing, *self._within(SURVEYED * spread)])
            elif len(self._rounds) == 1:
                self._leave_far_behind()
            elif len(self._rounds) >= judged_after:
                judged_after = math.ceil(judged_after * STAGE)
                if self._judge():
                    break

    def note(self, measurement: Measurement | None) -> None:
        """Note the measurement of the config whose turn it was; without a timing, it leaves."""
        if measurement is not None and measurement.median:
            self._turns.setdefault(measurement.config, []).append(measurement)
            self._rounds[-1].append(Look(measurement.config, measurement.median))

    def _within(self, factor: float) -> list[Config]:
        """Return the configs up to a factor slower than the best, by the screening, in order."""
        ordered = sorted(self._times, key=self._times.__getitem__)
        return [c for c in ordered if self._times[c] <= self._times[ordered[0]] * factor]

    def _enter(self, configs: Iterable[Config]) -> None:
        """Have configs race from now on."""
        entered = {*configs}
        self._racing = [config for config in self.screened if config in entered]

    def _unevenness(self) -> float:
        """Return how unequally configs' times have changed since the screening, 1 or more.

        A clock that falls for all alike leaves it at 1, and so does the timer's resolution.
        """
        well_timed, changes = {*self._within(HOPELESS)}, []
        for config, time in self._rounds[-1]:
            if config in well_timed:
                screened = self._times[config]
                changes.append(time / screened if abs(time - screened) > RESOLUTION else 1.0)
        return max(changes, default=1.0) / min(changes, default=1.0)

    def _leave_far_behind(self) -> None:
        """Let configs leave that one round has shown not to be close to the best."""
        times = dict(self._rounds[0])
        limits = dict.fromkeys(self._racing, 1 + FINALIST) | {self.default: HOPELESS}
        best = min(times.values(), default=0.0)
        self._racing = [c for c in self._racing if times[c] <= best * limits[c]]

    def _judge(self) -> bool:
        """Let configs leave that are behind; return whether the others are decided.

        A few stay in any case: the device's slowness shows only by configs that take turns with it.
        """
        estimate = self._estimate()
        by_time = sorted(self._racing, key=estimate.ratios.__getitem__)
        close = [c for c in by_time if not estimate.is_behind(c)]
        others = [c for c in by_time if c not in close]
        staying = {*close, *others[: max(LEAST_RACING - len(close), 0)]}
        self._racing = [config for config in self._racing if config in staying]
        rivals = [config for config in close if config != estimate.leader]
        if self.loss and all(estimate.largest_gain(c) <= self.loss for c in rivals):
            return self.default not in rivals or estimate.ratios[self.default] <= 1 + self.loss
        return all(estimate.ratios[c] + estimate.errors[c] <= 1 + NOISE for c in rivals)

    def _estimate(self) -> Estimate:
        """Estimate the configs' times relative to the fastest one's of those that race."""
        by_quiet = fits_quiet(self._rounds)
        times = estimate_times(self._rounds, by_quiet=by_quiet)
        leader = min(self._racing, key=times.__getitem__)
        parts = min(PARTS, len(self._rounds))
        without_one = [
            [turns for number, turns in enumerate(self._rounds) if number % parts != part]
            for part in range(parts)
        ]
        samples: dict[Config, list[float]] = {}
        for part in (estimate_times(turns, by_quiet=by_quiet) for turns in without_one):
            for config in part if leader in part else ():
                samples.setdefault(config, []).append(part[config] / part[leader])
        ratios = {config: time / times[leader] for config, time in times.items()}
        errors = {config: jackknife_error(samples.get(config, [])) for config in ratios}
        return Estimate(leader, ratios, errors)

    def conclude(self) -> list[Measurement]:
        """Return a measurement of each config that raced, and of those that now seem too fast.

        They replace those of the screening. The times of the others are of an earlier moment, at
        which the device may have been faster: none may come out ahead of the winner, which was
        compared with more care.
        """
        if not (self._rounds and self._racing):  # none was close to the best, or none runs now
            return []
        estimate = self._estimate()
        leading = sorted(turn.median or 0.0 for turn in self._turns[estimate.leader])
        level = leading[len(leading) // 4]
        measurements = []
        for config, turns in self._turns.items():
            estimated, error = estimate.ratios[config], estimate.errors[config]
            ratio = estimated
            if config not in self._racing:
                ratio = max(estimated, BEHIND)
            elif config == self.default and estimated - 1 <= CAUTION * error < math.inf:
                ratio = 1.0  # nothing may win by chance against the default
            certain = None
            if len(turns) >= LEAST_ROUNDS and estimated <= 1 + FINALIST:
                error += abs(ratio - estimated)
                certain = Confidence(error=round(error, 5), rounds=len(turns))
            pooled = _pool(turns, self.screened[config].seconds)
            pooled = pooled.model_copy(update={"confidence": certain})
            measurements.append(_scale(pooled, level * ratio / (pooled.median or 1.0)))
        for config, time in self._times.items():
            if config not in self._turns and time < level * BEHIND:
                corrected = _scale(self.screened[config], level * BEHIND / time)
                measurements.append(corrected.model_copy(update={"at": now(), "confidence": None}))
        return measurements


def _scale(measurement: Measurement, factor: float) -> Measurement:
    """Return a measurement with its timings multiplied by a factor."""
    quantiles = {name: getattr(measurement, name) for name in ("median", "p20", "p80")}
    scaled = {name: None if value is None else value * factor for name, value in quantiles.items()}
    return measurement.model_copy(update=scaled)


def _pool(measurements: Sequence[Measurement], screening: float) -> Measurement:
    """Return the medians of the turns' quantiles, with the seconds of all and of the screening."""

    def middle(name: str) -> float | None:
        values = [value for each in measurements if (value := getattr(each, name)) is not None]
        return statistics.median(values) if values else None

    update = {name: middle(name) for name in ("median", "p20", "p80")}
    seconds = math.fsum([screening, *(measurement.seconds for measurement in measurements)])
    return measurements[-1].model_copy(update={**update, "seconds": round(seconds, 3)})


class Estimate(NamedTuple):
    """The times of a race's configs.

    Attributes:
        leader: the fastest config of those that race.
        ratios: all configs' times, in proportion to the leader's.
        errors: half of the interval that a ratio lies in, as a share of it; infinite if unknown.
    """

    leader: Config
    ratios: Times
    errors: Times

    def largest_gain(self, config: Config) -> float:
        """Return by which share a config may at most be faster than the leader."""
        return 1 - self.ratios[config] + self.errors[config]

    def is_behind(self, config: Config) -> bool:
        """Return whether a config cannot be the fastest."""
        return self.ratios[config] - 1 > max(CAUTION * self.errors[config], NOISE)


def fits_quiet(rounds: Rounds) -> bool:
    """Return whether low quantiles tell configs' times better than medians do.

    Neither is right everywhere: the estimate counts on which the even and the odd rounds agree
    better.
    """
    disagreements = []
    for by_quiet in (False, True):
        even = estimate_times(rounds[::2], by_quiet=by_quiet)
        odd = estimate_times(rounds[1::2], by_quiet=by_quiet)
        both = [math.log(even[config] / odd[config]) for config in even.keys() & odd.keys()]
        middle = statistics.median(both) if both else 0.0
        off = [abs(one - middle) for one in both]
        disagreements.append(statistics.median(off) if off else math.inf)
    return disagreements[1] < disagreements[0]


def estimate_times(rounds: Rounds, *, by_quiet: bool) -> Times:
    """Estimate the configs' times and the device's levels from each other.

    Args:
        rounds: what the configs' turns took.
        by_quiet: whether to take low quantiles, relative to the level of each round. That is right
            if a config meets a quiet moment in a fifth of the rounds, whatever load does to it.
            Else medians are taken, relative to the level of each moment: right if load slows all
            configs alike, and lasts for several looks.
    """
    looks = [look for timings in rounds for look in timings]
    names = [look.config.text for look in looks]  # Python keeps the hash of a text
    summarize = _quiet if by_quiet else statistics.median
    levels, times = [1.0] * len(looks), dict[str, float]()
    for _ in range(REFINEMENTS + 1):
        if times:
            slowness = [look.time / times[name] for look, name in zip(looks, names, strict=True)]
            levels = _round_levels(rounds, slowness) if by_quiet else _moment_levels(slowness)
        relative: dict[str, list[float]] = {name: [] for name in names}
        for look, name, level in zip(looks, names, levels, strict=True):
            relative[name].append(look.time / level)
        times = {name: summarize(values) for name, values in relative.items()}
    return {look.config: times[look.config.text] for look in looks}


def _moment_levels(slowness: Sequence[float]) -> list[float]:
    """Return the median slowness around each look."""
    return [
        statistics.median(slowness[max(index - NEIGHBOURS, 0) : index + NEIGHBOURS + 1])
        for index in range(len(slowness))
    ]


def _round_levels(rounds: Rounds, slowness: Sequence[float]) -> list[float]:
    """Return the slowness of the quiet moments of each look's round."""
    left = iter(slowness)
    levels: list[float] = []
    for timings in filter(None, rounds):  # in an empty round, no config ran
        levels += [_quiet([next(left) for _ in timings])] * len(timings)
    return levels


def _quiet(values: Sequence[float]) -> float:
    return sorted(values)[int(len(values) * QUIET)]


def jackknife_error(samples: Sequence[float]) -> float:
    """Return half of a 90% interval by estimates that each leave out another part of a race.

    It is a share of their mean, by the jackknife; infinite if there are less than two.
    """
    count = len(samples)
    if count < 2:
        return math.inf
    mean = statistics.fmean(samples)
    variance = (count - 1) / count * math.fsum((one - mean) ** 2 for one in samples)
    return DEPENDENCE * STUDENT[count] * math.sqrt(variance) / mean
