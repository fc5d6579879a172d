"""Searches: measure all configs in order, or those that Optuna's sampler proposes."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from ..model.record import Measurement
from ..model.scenario import Config

__all__ = ["Exhaustive", "OptunaSearch", "Search"]

BATCH = 16
"""Configs that Optuna proposes together, so that they compile together."""

SEED = 0


class Search(Protocol):
    """A source of configs that learns from their measurements."""

    def ask(self) -> Sequence[Config]:
        """Return the next configs to measure; none at the end."""

    def tell(self, measurements: Iterable[Measurement]) -> None:
        """Take note of measurements of the proposed configs."""


class Exhaustive:
    """A search that proposes all configs at once, in order."""

    def __init__(self, configs: Sequence[Config]) -> None:
        """Search through some configs."""
        self._configs = list(configs)

    def ask(self) -> Sequence[Config]:
        """Return all configs at first, and none afterwards."""
        configs, self._configs = self._configs, []
        return configs

    def tell(self, measurements: Iterable[Measurement]) -> None:
        """Ignore the measurements, since everything is measured anyway."""


class OptunaSearch:
    """Configs that Optuna's TPE sampler proposes, from a study in memory with a fixed seed.

    The sampler knows nothing of conditions between parameters. Where it proposes no declared config
    or a measured one, the unmeasured config that shares most of its values is proposed instead, so
    that batches stay full as long as any are unmeasured.

    Args:
        declared: the configs that may be proposed.
        measured: earlier measurements, from which the sampler learns first.
        first: configs to begin with.
        budget: the most configs to propose.
    """

    def __init__(
        self,
        declared: Iterable[Config],
        measured: Iterable[Measurement],
        first: Sequence[Config],
        budget: int,
    ) -> None:
        """Set up the sampler; the arguments are described at the class."""
        import numpy as np
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna = optuna
        self._left = budget
        self._configs = list(declared)
        # Of several that share as many values, any may be the first.
        random.Random(SEED).shuffle(self._configs)
        self._index_of = {config: index for index, config in enumerate(self._configs)}
        rows, counts = _table(self._configs)
        self._rows = np.array(rows)
        self._unknown = np.ones(len(rows), dtype=bool)
        self._distributions = {
            name: optuna.distributions.CategoricalDistribution(range(count))
            for name, count in counts.items()
        }
        with warnings.catch_warnings():
            # `constant_liar`, called experimental, spreads the proposals of a batch.
            warnings.simplefilter("ignore")
            sampler = optuna.samplers.TPESampler(
                seed=SEED, n_startup_trials=BATCH, constant_liar=True
            )
        self._study = optuna.create_study(sampler=sampler)
        self._trials: dict[Config, Any] = {}
        self._first = [self._index_of[config] for config in first]
        for measurement in measured:
            if measurement.config in self._index_of:
                self._learn(measurement)

    def ask(self) -> Sequence[Config]:
        """Return the next batch of proposals; none once the budget is spent."""
        batch: list[Config] = []
        while len(batch) < BATCH and self._left and self._unknown.any():
            batch.append(self._propose())
            self._left -= 1
        return batch

    def _propose(self) -> Config:
        trial = self._trial(self._first.pop(0) if self._first else None)
        wanted = [trial.params[name] for name in self._distributions]
        alike = (self._rows == wanted).sum(axis=1)
        alike[~self._unknown] = -1
        index = int(alike.argmax())
        if alike[index] < len(wanted):
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
            trial = self._trial(index)
        self._unknown[index] = False
        self._trials[self._configs[index]] = trial
        return self._configs[index]

    def _trial(self, index: int | None = None) -> Any:
        """Return a trial of a config, or of what the sampler proposes."""
        if index is not None:
            self._study.enqueue_trial(self._params(index))
        return self._study.ask(self._distributions)

    def _params(self, index: int) -> dict[str, int]:
        return dict(zip(self._distributions, self._rows[index].tolist(), strict=True))

    def tell(self, measurements: Iterable[Measurement]) -> None:
        """Report the proposals' medians, or their failures, to the sampler."""
        for measurement in measurements:
            trial = self._trials.pop(measurement.config, None)
            if trial is None:
                continue
            if measurement.median is None:
                self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
            else:
                self._study.tell(trial, measurement.median)

    def _learn(self, measurement: Measurement) -> None:
        index = self._index_of[measurement.config]
        self._unknown[index] = False
        if measurement.median is not None:
            trial = self._optuna.trial.create_trial(
                params=self._params(index),
                distributions=self._distributions,
                value=measurement.median,
            )
            self._study.add_trial(trial)


def _table(configs: Iterable[Config]) -> tuple[list[list[int]], dict[str, int]]:
    """Return a row of value indices for each config, and each parameter's number of values."""
    settings = [{**config.params, **config.options} for config in configs]
    # Values are told apart by their text, since True, 1 and 1.0 are equal in Python.
    indices: dict[str, dict[str, int]] = {name: {} for setting in settings for name in setting}
    rows = [
        [index.setdefault(repr(setting.get(name)), len(index)) for name, index in indices.items()]
        for setting in settings
    ]
    return rows, {name: len(index) for name, index in indices.items()}
