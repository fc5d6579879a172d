"""Compare the fastest configs of a screening, as carefully as the device's steadiness demands."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from ..model.record import Measurement
from ..model.scenario import Config, now
from .device_timer import SCREENING
from .race import race, race_unsteadily, survey
from .race_confidence import widen_confidence
from .race_turns import BEHIND, Turn, change_between, scale_measurement

__all__ = ["HOPELESS", "Finals"]

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
