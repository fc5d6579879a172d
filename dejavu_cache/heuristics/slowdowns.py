"""What each config costs in each scenario, as a table."""

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
"""Milliseconds: what a clock reports as nothing took at least this."""


@dataclass(frozen=True)
class SlowdownTable:
    """Times over the best of each scenario.

    Attributes:
        scenarios: the rows.
        configs: the columns.
        slowdown: [scenarios, configs], 1.0 for the best of a row, infinite for what failed or was not measured.
        tried: [scenarios, configs], what was measured, also if it failed; the rest was not declared, or pruned.
        best: [scenarios], the best median in milliseconds.
    """

    scenarios: tuple[Scenario, ...]
    configs: tuple[Config, ...]
    slowdown: Matrix
    tried: NDArray[np.bool_]
    best: Matrix

    @classmethod
    def of(cls, records: Iterable[Record]) -> SlowdownTable:
        """The table of the records with something to choose: two timed configs or more.

        A record with less than a tenth of the measurements of the fullest one is hardly begun, and left out.
        Those between may be whole: pruning leaves many configs to some scenarios and few to others.
        """
        held = [
            record
            for record in records
            if sum(each.median is not None for each in record.measurements) > 1
        ]
        fullest = max((len(record.measurements) for record in held), default=0)
        held = sorted(
            (record for record in held if 10 * len(record.measurements) >= fullest),
            key=lambda record: record.scenario.text,
        )
        configs = sorted(
            {
                each.config
                for record in held
                for each in record.measurements
                if each.median is not None
            },
            key=lambda config: config.text,
        )
        place = {config: index for index, config in enumerate(configs)}
        median = np.full((len(held), len(configs)), np.inf)
        tried = np.zeros(median.shape, dtype=bool)
        for row, record in enumerate(held):
            for each in record.measurements:
                if each.config in place:
                    tried[row, place[each.config]] = True
                if each.median is not None:
                    median[row, place[each.config]] = max(each.median, _INSTANT)
        best = median.min(axis=1) if held else np.empty(0)
        return cls(
            tuple(record.scenario for record in held),
            tuple(configs),
            median / best[:, None],
            tried,
            best,
        )

    def __len__(self) -> int:
        return len(self.scenarios)

    def rows(self, chosen: Iterable[int]) -> SlowdownTable:
        """The table of some of the scenarios."""
        at = list(chosen)
        scenarios = tuple(self.scenarios[row] for row in at)
        return SlowdownTable(
            scenarios, self.configs, self.slowdown[at], self.tried[at], self.best[at]
        )
