"""Compare close configs in turns, so that all meet the same clock, temperature and neighbours.

Estimate configs' times on a device that others load, or whose clock changes.

Configs that take turns in random order meet the same moments, so their times can be told from the
device's slowness. Two estimates do that under different assumptions; neither is right everywhere.

Estimate how certain a race's verdict is, from how much its rounds agree with each other.

The turns that configs take in a race, and the verdict that follows from them.

Compare the fastest configs of a screening, as carefully as the device's steadiness demands.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from ..model.record import Confidence, Measurement
from ..model.scenario import Config, now
from ..model.selection import CONTENDER, NOISE
from .device_timer import FULL, SCREENING, TURN, Effort

__all__ = [
    "BEHIND",
    "HOPELESS",
    "Finals",
    "Look",
    "Results",
    "Times",
    "Turn",
    "Turns",
    "change_between",
    "confidences",
    "favourable_times",
    "group_rounds",
    "race",
    "race_unsteadily",
    "relative_times",
    "scale_measurement",
    "survey",
    "widen_confidence",
]


NEIGHBOURS = 1
"""Looks before and after one from which the level of its moment is estimated: 3 take some 5 ms."""

REFINEMENTS = 3
"""Repetitions of the estimate of levels and times from each other."""

UNDISTURBED = 0.2
"""Share of the configs of a round that are taken to have met a quiet moment."""

QUIET = 0.2
"""Share of a config's looks that are taken to have met a quiet moment."""


class Look(NamedTuple):
    """The time of one config at one moment, in milliseconds."""

    config: Config
    time: float


Rounds = Sequence[Sequence[Look]]
"""Looks at the same configs once per round, in the order in which they were taken."""

RelativeTimes = dict[Config, float]


def relative_times(rounds: Rounds) -> RelativeTimes:
    """Return the configs' times relative to the fastest one's.

    Of the two estimates, the one on which the even and the odd rounds agree better.
    """
    return min((_by_moment, _by_quiet), key=lambda estimate: _disagreement(estimate, rounds))(
        rounds
    )


def favourable_times(rounds: Rounds) -> RelativeTimes:
    """Return the configs' times relative to the fastest one's, by each one's better estimate.

    A config that is fast under either assumption is worth another look.
    """
    by_moment, by_quiet = _by_moment(rounds), _by_quiet(rounds)
    return {config: min(time, by_quiet[config]) for config, time in by_moment.items()}


def _by_moment(rounds: Rounds) -> RelativeTimes:
    """Estimate times by medians relative to the level of each moment.

    Right if load slows all configs alike, and lasts for several looks.
    """
    looks = [look for timings in rounds for look in timings]

    def levels(times: RelativeTimes) -> list[float]:
        slowness = [look.time / times[look.config] for look in looks]
        return [
            statistics.median(slowness[max(index - NEIGHBOURS, 0) : index + NEIGHBOURS + 1])
            for index in range(len(looks))
        ]

    return _estimate(looks, statistics.median, levels)


def _by_quiet(rounds: Rounds) -> RelativeTimes:
    """Estimate times by low quantiles relative to the level of each round.

    Right if a config meets a quiet moment in a fifth of the rounds, whatever load does to it.
    """
    looks = [look for timings in rounds for look in timings]

    def levels(times: RelativeTimes) -> list[float]:
        result = []
        for timings in filter(None, rounds):  # in an empty round, no config ran
            slowness = [look.time / times[look.config] for look in timings]
            result += [_quantile(slowness, UNDISTURBED)] * len(timings)
        return result

    return _estimate(looks, lambda values: _quantile(values, QUIET), levels)


def _estimate(
    looks: Sequence[Look],
    summarize: Callable[[Sequence[float]], float],
    levels_of: Callable[[RelativeTimes], Sequence[float]],
) -> RelativeTimes:
    """Estimate times and levels from each other, beginning with equal levels."""
    times = _summaries(looks, [1.0] * len(looks), summarize)
    for _ in range(REFINEMENTS):
        times = _summaries(looks, levels_of(times), summarize)
    best = min(times.values(), default=1.0)
    return {config: time / best for config, time in times.items()}


def _summaries(
    looks: Sequence[Look],
    levels: Sequence[float],
    summarize: Callable[[Sequence[float]], float],
) -> RelativeTimes:
    """Return a summary of each config's times relative to the levels of its looks."""
    relative: dict[Config, list[float]] = {}
    for look, level in zip(looks, levels, strict=True):
        relative.setdefault(look.config, []).append(look.time / level)
    return {config: summarize(values) for config, values in relative.items()}


def _disagreement(estimate: Callable[[Rounds], RelativeTimes], rounds: Rounds) -> float:
    """Return the median relative difference of the estimates by even and odd rounds."""
    even, odd = (
        _center_logarithms(estimate(rounds[::2])),
        _center_logarithms(estimate(rounds[1::2])),
    )
    differences = [abs(value - odd[config]) for config, value in even.items() if config in odd]
    return statistics.median(differences) if differences else math.inf


def _center_logarithms(times: Mapping[Config, float]) -> RelativeTimes:
    logarithms = {config: math.log(time) for config, time in times.items()}
    middle = statistics.median(logarithms.values()) if logarithms else 0.0
    return {config: value - middle for config, value in logarithms.items()}


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[int(len(values) * share)]


COVERAGE = 0.9
"""Probability with which the interval contains the true ratio."""

LEAST_COMPARISONS = 2
"""Least number of comparisons of two configs that tells how far they can be trusted."""

WIDENED = {2: 6.3, 3: 2.0, 4: 1.15}
"""Factors by number of samples that widen their range to `COVERAGE`, for a normal distribution."""

GROUPS = 5
"""Parts of a race on an unsteady device, in each of which the times are estimated anew."""

Times = Mapping[Config, float]
"""Times of configs, in proportion."""

_Round = TypeVar("_Round")


def group_rounds(rounds: Sequence[_Round]) -> list[Sequence[_Round]]:
    """Deal rounds out to groups, so that each group has some of the beginning and of the end."""
    return [rounds[start::GROUPS] for start in range(min(GROUPS, len(rounds)))]


def confidences(
    ratios: Times, leader: Config, comparisons: Sequence[Times], rounds: Mapping[Config, int]
) -> dict[Config, Confidence]:
    """Return how certain the ratios of configs to the leader are; the leader's is the next one's.

    Args:
        ratios: the configs' times, in proportion, by the whole race.
        leader: the fastest config.
        comparisons: the same by single rounds or groups of rounds.
        rounds: the number of rounds that each config ran.
    """
    certain = {}
    for config in sorted(ratios, key=ratios.__getitem__):
        samples = [
            times[config] / times[leader]
            for times in comparisons
            if config in times and leader in times
        ]
        if config != leader and len(samples) >= LEAST_COMPARISONS:
            error = _half_interval(samples)
            certain[config] = Confidence(error=round(error, 5), rounds=rounds[config])
    if certain:
        certain[leader] = next(iter(certain.values()))
    return certain


def _half_interval(samples: Sequence[float]) -> float:
    """Return half of the interval that the median of samples lies in, as a share of its middle.

    The interval lies between two of the samples, so it holds whatever their distribution is. Less
    than five samples cannot give that much certainty; the range of all is then widened.
    """
    ordered, count = sorted(samples), len(samples)
    outside, left_out = 2 / 2**count, 0
    while left_out + 1 < count // 2:
        outside += 2 * math.comb(count, left_out + 1) / 2**count
        if outside > 1 - COVERAGE:
            break
        left_out += 1
    low, high = ordered[left_out], ordered[count - 1 - left_out]
    return (high - low) / (high + low) * WIDENED.get(count, 1.0)


def widen_confidence(confidence: Confidence | None, error: float) -> Confidence | None:
    """Return a confidence whose error is at least as large as another one."""
    if confidence is None or confidence.error >= error:
        return confidence
    return confidence.model_copy(update={"error": round(error, 5)})


Turn = Callable[[Config, Effort], Measurement | None]
"""Measures one config; a failure or None takes the config out of a comparison."""

RESOLUTION = 0.001
"""Milliseconds by which two timings of one config may differ: events count half a microsecond."""

BEHIND = 1 + 2 * NOISE
"""Least ratio to the winner's time at which a config that left the race is recorded."""


class Results(NamedTuple):
    """The outcome of a race.

    Attributes:
        measurements: one of each config that ran; the order of their medians is the race's verdict.
        spread: the largest change, from one round to another, of the ratio of a config that
            finished to the leader; 1 or more. A clock that falls for both leaves it at 1.
        level_spread: the largest ratio of two turns of one config that finished, 1 or more.
    """

    measurements: dict[Config, Measurement]
    spread: float
    level_spread: float


class Turns:
    """The measurements of a race's configs, round by round.

    A config takes part from the first round until it leaves, so the ones that finished have the
    most turns.
    """

    def __init__(self) -> None:
        """Begin without a round."""
        self._turns: dict[Config, list[Measurement]] = {}

    def run_round(self, configs: Sequence[Config], turn: Turn, effort: Effort) -> list[Config]:
        """Measure each config once, and return the configs that ran."""
        ran = []
        for config in configs:
            measurement = turn(config, effort)
            if measurement is not None and measurement.median:
                self._turns.setdefault(config, []).append(measurement)
                ran.append(config)
        return ran

    def times(self, config: Config) -> list[float]:
        """Return the medians of a config's turns, in milliseconds."""
        return [measurement.median or 0.0 for measurement in self._turns[config]]

    @property
    def by_round(self) -> list[Times]:
        """The times of the configs that ran, round by round."""
        times = {config: self.times(config) for config in self._turns}
        rounds = max(map(len, times.values()), default=0)
        return [
            {config: values[number] for config, values in times.items() if number < len(values)}
            for number in range(rounds)
        ]

    @property
    def ratios(self) -> dict[Config, float]:
        """The configs' times relative to the fastest finisher's, in the rounds that both ran."""
        if not self._turns:
            return {}
        leading = self.times(
            min(self._finishers, key=lambda config: statistics.median(self.times(config)))
        )
        return {
            config: statistics.median(
                time / lead for time, lead in zip(self.times(config), leading, strict=False)
            )
            for config in self._turns
        }

    def summarize(
        self,
        ratios: Mapping[Config, float],
        level_of: Callable[[Sequence[float]], float],
        comparisons: Sequence[Times],
    ) -> Results:
        """Return measurements in proportion to ratios, on the level of the leader's turns.

        The leader is the fastest config that finished. One that left before is recorded behind it.

        Args:
            ratios: the configs' times, relative to any of them.
            level_of: summarizes the times of the leader's turns.
            comparisons: the configs' relative times at several moments, which tell how sure they
                are.
        """
        finishers = self._finishers
        if not finishers:
            return Results({}, 1.0, 1.0)
        leader = min(finishers, key=ratios.__getitem__)
        leading = self.times(leader)
        level = level_of(leading)
        rounds = {config: len(turns) for config, turns in self._turns.items()}
        certainty = confidences(ratios, leader, comparisons, rounds)
        measurements = {}
        for config, turns in self._turns.items():
            ratio = ratios[config] / ratios[leader]
            if config not in finishers:
                ratio = max(ratio, BEHIND)
            pooled = _pool(turns).model_copy(update={"confidence": certainty.get(config)})
            measurements[config] = scale_measurement(pooled, level * ratio / (pooled.median or 0.0))
        times = [self.times(config) for config in finishers]
        return Results(
            measurements,
            max(_ratio_spread(values, leading) for values in times),
            max(change_between(*values) for values in times),
        )

    @property
    def _finishers(self) -> list[Config]:
        rounds = max(map(len, self._turns.values()), default=0)
        return [config for config, turns in self._turns.items() if len(turns) == rounds]


def change_between(*times: float) -> float:
    """Return the ratio of the largest to the smallest time; 1 if the resolution explains it."""
    fast, slow = min(times), max(times)
    return slow / fast if slow - fast > RESOLUTION else 1.0


def scale_measurement(measurement: Measurement, factor: float) -> Measurement:
    """Return a measurement with its timings multiplied by a factor."""
    quantiles = {name: getattr(measurement, name) for name in ("median", "p20", "p80")}
    scaled = {name: None if value is None else value * factor for name, value in quantiles.items()}
    return measurement.model_copy(update=scaled)


def _ratio_spread(times: Sequence[float], leading: Sequence[float]) -> float:
    """Return the largest over the smallest ratio of two configs that took all turns together.

    It is 1 if the resolution of both configs' timings explains the difference.
    """
    ratios = [time / lead for time, lead in zip(times, leading, strict=True)]
    lowest, highest = min(ratios), max(ratios)
    unresolved = RESOLUTION * (1 + highest) / min(leading)
    return highest / lowest if highest - lowest > unresolved else 1.0


def _pool(measurements: Sequence[Measurement]) -> Measurement:
    """Return the medians of the turns' quantiles, with the seconds of all."""

    def middle(name: str) -> float | None:
        values = [getattr(measurement, name) for measurement in measurements]
        values = [value for value in values if value is not None]
        return statistics.median(values) if values else None

    update = {name: middle(name) for name in ("median", "p20", "p80")}
    seconds = math.fsum(measurement.seconds for measurement in measurements)
    return measurements[-1].model_copy(update={**update, "seconds": round(seconds, 3)})


ROUNDS, MOST_ROUNDS = 3, 8
"""Least and most rounds on a steady device; a race ends earlier once a config is ahead or tied."""

PASSES = 11
"""Times that a config is measured to find the fast ones on an unsteady device."""

SHORT_ROUNDS = 25
"""Rounds of short turns on an unsteady device, after which configs that are behind leave."""

SHORT_RACE_CONTENDER = 0.05
"""Slowdown against the best, after these rounds, above which a config is behind."""

LUCKY_ROUNDS = 6
"""Number of rounds in which a slower config may be the faster one once by chance."""


def race(
    configs: Sequence[Config], turn: Turn, is_over: Callable[[], bool] = lambda: False
) -> Results:
    """Let configs take turns on a steady device until one is ahead or the rest tie with it.

    Args:
        configs: the configs to compare, two at least.
        turn: measures one config.
        is_over: whether the time for tuning has run out; the first round is run in any case.
    """
    turns = Turns()
    racing, rounds = list(configs), 0
    while len(racing) > 1 and rounds < MOST_ROUNDS and not (rounds and is_over()):
        rounds += 1
        racing = turns.run_round(racing, turn, FULL)
        times = {config: turns.times(config) for config in racing}
        if rounds >= ROUNDS:
            racing = _keep_undecided(times)
        elif times:
            best = min(values[-1] for values in times.values())
            racing = [c for c in racing if times[c][-1] <= best * (1 + CONTENDER)]
    return turns.summarize(turns.ratios, statistics.median, turns.by_round)


def race_unsteadily(
    configs: Sequence[Config], turn: Turn, is_over: Callable[[], bool] = lambda: False
) -> Results:
    """Let configs take many short turns in random order on a device that is not steady.

    The order is random so that no rhythm of a load favours a config. Configs that the first rounds
    show to be behind leave; the others take as many turns again.

    Args:
        configs: the configs to compare, two at least.
        turn: measures one config.
        is_over: whether the time for tuning has run out; the first round is run in any case.
    """
    turns = Turns()
    rounds: list[list[Look]] = []
    racing, rng = list(configs), random.Random(len(configs))
    while len(racing) > 1 and len(rounds) < 2 * SHORT_ROUNDS and not (rounds and is_over()):
        rng.shuffle(racing)
        racing = turns.run_round(racing, turn, TURN)
        rounds.append([Look(config, turns.times(config)[-1]) for config in racing])
        if len(rounds) == SHORT_ROUNDS:
            times = relative_times(rounds)
            racing = [config for config in racing if times[config] <= 1 + SHORT_RACE_CONTENDER]
    times_by_group = list(map(relative_times, group_rounds(rounds)))
    return turns.summarize(relative_times(rounds), _lower_quartile, times_by_group)


def survey(
    configs: Sequence[Config], turn: Turn, is_over: Callable[[], bool] = lambda: False
) -> dict[Config, float]:
    """Return estimates of the times of configs on an unsteady device, relative to the fastest.

    Args:
        configs: the configs to measure.
        turn: measures one config.
        is_over: whether the time for tuning has run out; no pass begins after that.
    """
    passes: list[list[Look]] = []
    order, rng = list(configs), random.Random(len(configs))
    while len(passes) < PASSES and not is_over():
        rng.shuffle(order)
        timings = [(config, turn(config, SCREENING)) for config in order]
        passes.append([Look(c, timing.median) for c, timing in timings if timing and timing.median])
    return favourable_times(passes)


def _keep_undecided(times: Mapping[Config, Sequence[float]]) -> list[Config]:
    """Return the leader and the configs that their times do not tell apart from it, if any.

    Args:
        times: each config's time in each round, in which all of them ran.
    """
    if not times:
        return []
    leader = min(times, key=lambda config: statistics.median(times[config]))
    remaining = [
        config
        for config in times
        if config == leader or not _is_decided(times[config], times[leader])
    ]
    return remaining if len(remaining) > 1 else []


def _is_decided(times: Sequence[float], leading: Sequence[float]) -> bool:
    """Return whether times show that a config is slower than the leader or tied with it."""
    ratios = [time / lead for time, lead in zip(times, leading, strict=False)]
    is_tied = statistics.median(ratios) <= 1 + NOISE
    is_slower = sum(ratio <= 1 for ratio in ratios) <= len(ratios) // LUCKY_ROUNDS
    return is_tied or is_slower


def _lower_quartile(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 4]


HOPELESS = 3.0
"""A config that takes this many times the best's time is timed only once."""

FINALIST = 0.15
"""Slowdown against the best, after screening, up to which a config is raced."""

FINALISTS = 12
"""Most configs in a race."""

PROBES = 8
"""Fast configs that are measured again to learn whether the device repeats its timings.

A race costs some hundred launches, a probe about ten.
"""

STEADY = 1.08
"""Ratio of two screenings of one config up to which a device repeats its timings.

A GPU that is busy with nothing else stays within it once its clock has settled.
"""

SETTLED = 1.2
"""Ratio of two turns of one config in a race up to which the device counts as steady.

The long turns of a race lower the clock of a GPU under a heavy kernel by some 10%, for all alike.
"""

SURVEYED = 1.8
"""Slowdown against the best up to which a config is surveyed, if two screenings of one are equal.

The ratio of two screenings of one config multiplies it.
"""


class Finals:
    """A comparison of the configs that a screening found fast.

    Where the device repeats its timings, those close to the best are raced. Where it does not, its
    clock may have fallen during the screening: the fast configs are screened again. If that does
    not help, one screening is worth little, so all that may be fast are surveyed first.

    Args:
        screened: the measurements of the screening, in its order.
        default: the config that the winner must not be slower than.
        turn: measures one config.
        prepare: is called with configs before they are measured.
        is_over: whether the time for tuning has run out.
    """

    def __init__(
        self,
        screened: Mapping[Config, Measurement],
        default: Config,
        turn: Turn,
        *,
        prepare: Callable[[Sequence[Config]], None] = lambda configs: None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Set up the comparison; the arguments are described at the class."""
        self._screened = dict(screened)
        self._screened_again: set[Config] = set()
        self._times = {config: look.median for config, look in screened.items() if look.median}
        self._default = default
        self._turn = turn
        self._prepare = prepare
        self._is_over = is_over

    def run(self, *, probe: bool) -> list[Measurement]:
        """Compare the configs, and return the measurements that replace those of the screening.

        Args:
            probe: whether to test the device's steadiness; else it is taken to be steady.
        """
        spread = self._settle() if probe and len(self._times) > 1 else 1.0
        if spread <= STEADY:
            finalists = self._finalists(self._times, least=1)
            if len(finalists) < 2:
                return self._repeated_screenings()
            self._prepare(finalists)
            results = race(finalists, self._turn, self._is_over)
            changes = [self._change(*result) for result in results.measurements.items()]
            level_spread = max([results.level_spread, *changes])
            is_steady = results.spread <= STEADY and level_spread <= SETTLED
            if is_steady or not probe or self._is_over():
                return self._conclude(results.measurements, {})
            spread = max(results.spread, level_spread)
        return self._run_unsteadily(spread)

    def _settle(self) -> float:
        """Return the largest change of a repeated timing, after another screening if it is large.

        That helps where the clock has fallen during the first one, and has settled since.
        """
        spread = self._largest_change()
        if spread > STEADY and not self._is_over():
            self._screen_again(SURVEYED * spread)
            spread = self._largest_change()
        return spread

    def _run_unsteadily(self, spread: float) -> list[Measurement]:
        surveyed = self._survey(SURVEYED * spread)
        finalists = self._finalists(surveyed or self._times, least=2)
        self._prepare(finalists)
        results = race_unsteadily(finalists, self._turn, self._is_over)
        return self._conclude(self._confirm_lead(finalists, results.measurements, spread), surveyed)

    def _confirm_lead(
        self, finalists: Sequence[Config], results: dict[Config, Measurement], spread: float
    ) -> dict[Config, Measurement]:
        """Return results in which the leader's lead over the default is not one of chance.

        A lead that the device's changes may explain has to show in a second race of the two. If it
        does not, all finalists race a third time, and the median of the three leads counts.

        Args:
            finalists: the configs of the first race.
            results: their measurements.
            spread: the largest ratio of two timings of one config.
        """
        leader = min(results, key=lambda c: results[c].median or 0.0, default=self._default)
        first = _lead(results, leader, self._default)
        if leader == self._default or not 0 < first <= spread:
            return results
        second = self._lead_again([leader, self._default], leader)
        if second is None or second >= 1:
            return results
        third = self._lead_again(finalists, leader)
        if third is None:
            return results
        leads = first, second, third
        default = scale_measurement(
            results[self._default], min(statistics.median(leads) / first, 1.0)
        )
        error = (max(leads) - min(leads)) / (max(leads) + min(leads))
        return {
            **results,
            self._default: _widen(default, error),
            leader: _widen(results[leader], error),
        }

    def _lead_again(self, configs: Sequence[Config], leader: Config) -> float | None:
        """Race configs again; return the leader's lead, or None if that tells nothing."""
        if self._is_over():
            return None
        again = race_unsteadily(configs, self._turn, self._is_over).measurements
        return _lead(again, leader, self._default) or None

    def _within(self, factor: float) -> list[Config]:
        """Return the configs that the screening found up to a factor slower than the best."""
        limit = min(self._times.values(), default=0.0) * factor
        return [config for config, time in self._times.items() if time <= limit]

    def _largest_change(self) -> float:
        """Return the largest ratio of two screenings of some fast configs, the default included.

        The fastest one is measured first and again last: if it met the only quiet moment of the
        screening, no other config shows that the device is loaded.
        """
        fast = self._within(HOPELESS)
        leader = min(fast, key=self._times.__getitem__)
        others = [config for config in fast[:: max(len(fast) // PROBES, 1)] if config != leader]
        probes = [leader, *others[:PROBES]]
        if self._default in self._times and self._default not in probes:
            probes.append(self._default)
        self._prepare(probes)
        probes.append(leader)
        return max((self._repeat(config) for config in probes), default=1.0)

    def _screen_again(self, factor: float) -> None:
        """Repeat the screening of the fast configs, last first, and use these timings instead."""
        fast = self._within(factor)
        self._prepare(fast)
        for config in reversed(fast):
            again = self._turn(config, SCREENING)
            if again is not None and again.median:
                self._screened[config], self._times[config] = again, again.median
                self._screened_again.add(config)

    def _repeat(self, config: Config) -> float:
        """Measure a config again, and return the ratio of the two timings, 1 or more."""
        return self._change(config, self._turn(config, SCREENING))

    def _change(self, config: Config, again: Measurement | None) -> float:
        """Return the ratio of a config's timing and that of the screening, 1 or more."""
        if again is None or not again.median:
            return 1.0
        return change_between(again.median, self._times[config])

    def _survey(self, factor: float) -> dict[Config, float]:
        configs = self._within(factor)
        if self._default in self._times and self._default not in configs:
            configs.append(self._default)
        self._prepare(configs)
        return survey(configs, self._turn, self._is_over)

    def _finalists(self, times: Mapping[Config, float], least: int) -> list[Config]:
        """Return the configs to race: those close to the best, and the default unless hopeless.

        Args:
            times: the configs' times, in proportion.
            least: the number of configs to race, however far apart they are.
        """
        ordered = sorted(times, key=times.__getitem__)
        best = times[ordered[0]] if ordered else 0.0
        close = {
            config
            for rank, config in enumerate(ordered[:FINALISTS])
            if rank < least or times[config] <= best * (1 + FINALIST)
        }
        if len(close) > 1 and times.get(self._default, best * HOPELESS) < best * HOPELESS:
            close.add(self._default)
        return [config for config in self._screened if config in close]

    def _conclude(
        self, results: Mapping[Config, Measurement], surveyed: Mapping[Config, float]
    ) -> list[Measurement]:
        """Return a race's results, and corrected measurements of the configs that did not race.

        Their timings are of an earlier moment, at which the device may have been faster: none may
        come out ahead of the winner, which was compared with more care.

        Args:
            results: the measurements of the configs that raced.
            surveyed: the configs' times in the survey, in proportion; empty without a survey.
        """
        if not results:
            return self._repeated_screenings()
        medians = {config: result.median or 0.0 for config, result in results.items()}
        least = min(medians.values()) * BEHIND
        level = max(
            (medians[config] / surveyed[config] for config in results if config in surveyed),
            default=0.0,
        )
        corrected = []
        for config, time in self._times.items():
            if config not in results:
                surveyed_time = level * surveyed[config] if config in surveyed else time
                corrected += self._correct(config, max(surveyed_time, least))
        return [*results.values(), *corrected]

    def _correct(self, config: Config, time: float) -> list[Measurement]:
        """Return a config's measurement if a time differs from the recorded one, else nothing."""
        measurement, screened = self._screened[config], self._times[config]
        if time != screened:
            scaled = scale_measurement(measurement, time / screened)
            return [scaled.model_copy(update={"at": now(), "confidence": None})]
        return [measurement] if config in self._screened_again else []

    def _repeated_screenings(self) -> list[Measurement]:
        """Return the measurements that differ from those of the first screening."""
        return [self._screened[config] for config in self._screened_again]


def _lead(results: Mapping[Config, Measurement], leader: Config, default: Config) -> float:
    """Return how many times the leader's time the default takes; 0 if one of them did not run."""
    if leader not in results or default not in results:
        return 0.0
    return (results[default].median or 0.0) / (results[leader].median or 1.0)


def _widen(measurement: Measurement, error: float) -> Measurement:
    confidence = widen_confidence(measurement.confidence, error)
    return measurement.model_copy(update={"confidence": confidence})
