"""The slowdown of each config in each scenario, as a table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..model.record import Record
from ..model.scenario import Config, Scenario

__all__ = ["Matrix", "SlowdownTable"]

Matrix = NDArray[np.float64]

_INSTANT = 1e-9
"""Milliseconds that stand for a median of zero, which is below a clock's resolution."""


@dataclass(frozen=True)
class SlowdownTable:
    """Times as multiples of the best in each scenario.

    Attributes:
        scenarios: the rows.
        configs: the columns.
        slowdown: [scenarios, configs], 1.0 for the best of a row, infinite for a config that failed
            or was not measured.
        tried: [scenarios, configs], whether a config was measured, even if it failed; the others
            were pruned or not declared.
        best: [scenarios], the best median in milliseconds.
    """

    scenarios: tuple[Scenario, ...]
    configs: tuple[Config, ...]
    slowdown: Matrix
    tried: NDArray[np.bool_]
    best: Matrix

    @classmethod
    def of(cls, records: Iterable[Record]) -> SlowdownTable:
        """Make the table of all records that have at least two timed configs.

        A record with less than a tenth of the measurements of the fullest one is left out, since
        its tuning has hardly begun. Records in between may be complete, since pruning leaves many
        configs to some scenarios and few to others.
        """
        usable = [record for record in records if _timed_count(record) > 1]
        fullest = max((len(record.measurements) for record in usable), default=0)
        usable = sorted(
            (record for record in usable if 10 * len(record.measurements) >= fullest),
            key=lambda record: record.scenario.text,
        )
        configs = sorted(
            {
                measurement.config
                for record in usable
                for measurement in record.measurements
                if measurement.median is not None
            },
            key=lambda config: config.text,
        )
        column_of = {config: column for column, config in enumerate(configs)}
        median = np.full((len(usable), len(configs)), np.inf)
        tried = np.zeros(median.shape, dtype=bool)
        for row, record in enumerate(usable):
            for measurement in record.measurements:
                column = column_of.get(measurement.config)
                if column is not None:
                    tried[row, column] = True
                if column is not None and measurement.median is not None:
                    median[row, column] = max(measurement.median, _INSTANT)
        best = median.min(axis=1) if usable else np.empty(0)
        return cls(
            tuple(record.scenario for record in usable),
            tuple(configs),
            median / best[:, None],
            tried,
            best,
        )

    def __len__(self) -> int:
        """Return the number of scenarios."""
        return len(self.scenarios)

    def rows(self, chosen: Iterable[int]) -> SlowdownTable:
        """Return the table of some of the scenarios."""
        indices = list(chosen)
        scenarios = tuple(self.scenarios[row] for row in indices)
        return SlowdownTable(
            scenarios, self.configs, self.slowdown[indices], self.tried[indices], self.best[indices]
        )


def _timed_count(record: Record) -> int:
    return sum(measurement.median is not None for measurement in record.measurements)
