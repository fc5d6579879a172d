"""Measurements of this process, which it believes more than what others have recorded."""

from __future__ import annotations

from collections.abc import Iterable

from ..model.record import Measurement, Record
from ..model.scenario import Config, Context, Scenario

__all__ = ["MOST_SCENARIOS", "OwnTrials"]

MOST_SCENARIOS = 4096


class OwnTrials:
    """The measurements that one autotuner of this process has made.

    A server keeps the first measurement of a config, so it may go on saying what this process knows
    to be false.
    """

    def __init__(self) -> None:
        """Begin without any."""
        self._scenarios: dict[tuple[Context, Scenario], dict[Config, Measurement]] = {}

    def add(
        self, context: Context, scenario: Scenario, measurements: Iterable[Measurement]
    ) -> None:
        """Remember measurements; one that lacked memory says nothing."""
        key = context, scenario
        if key not in self._scenarios and len(self._scenarios) >= MOST_SCENARIOS:
            self._scenarios.clear()
        trials = self._scenarios.setdefault(key, {})
        trials.update(
            {
                measurement.config: measurement
                for measurement in measurements
                if not measurement.skipped
            }
        )

    def of(self, context: Context, scenario: Scenario) -> dict[Config, Measurement]:
        """Return this process's measurements of a scenario, by config."""
        return self._scenarios.get((context, scenario), {})

    def forget(self, context: Context, scenario: Scenario) -> None:
        """Forget the measurements of a scenario, so that its configs are tried again."""
        self._scenarios.pop((context, scenario), None)

    def correct(self, context: Context, record: Record) -> Record:
        """Return a record in which other machines' measurements give way to this process's."""
        measurements = record.by_config
        corrections = {
            config: trial
            for config, trial in self.of(context, record.scenario).items()
            if config not in measurements or measurements[config].by != trial.by
        }
        if not corrections:
            return record
        merged = tuple({**measurements, **corrections}.values())
        return record.model_copy(update={"measurements": merged})
