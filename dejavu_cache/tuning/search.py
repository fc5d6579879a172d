"""Which configs are measured: all of them in order, or those that Optuna's sampler chooses."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from ..records import Config, Measurement, Scalar

__all__ = ["Exhaustive", "OptunaSearch", "Search"]

BATCH = 16
"""How many configs Optuna proposes at once, so that they compile at once."""

TRIALS_PER_CONFIG = 20
"""How many proposals that are no configs, or known ones, are passed over before the search gives up."""

SEED = 0


class Search(Protocol):
    """A source of configs that is told what its proposals were worth."""

    def ask(self) -> Sequence[Config]:
        """The next configs to measure; none at the end."""

    def tell(self, taken: Iterable[Measurement]) -> None:
        """What was measured of them."""


class Exhaustive:
    """All of some configs, the first ones first."""

    def __init__(self, configs: Sequence[Config]) -> None:
        self._configs = list(configs)

    def ask(self) -> Sequence[Config]:
        configs, self._configs = self._configs, []
        return configs

    def tell(self, taken: Iterable[Measurement]) -> None:
        pass


class OptunaSearch:
    """Configs that Optuna's TPE sampler proposes, from a study in memory with a fixed seed.

    Args:
        declared: the configs that may be proposed.
        known: what is measured already, from which the sampler learns first.
        first: configs to begin with.
        budget: how many to propose at the most.
    """

    def __init__(
        self, declared: Iterable[Config], known: Iterable[Measurement], first: Sequence[Config], budget: int
    ) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna = optuna
        self._left = budget
        self._by_values = {_values(config): config for config in declared}
        self._choices = _choices(self._by_values.values())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # constant_liar is called experimental; it spreads what a batch proposes
            sampler = optuna.samplers.TPESampler(seed=SEED, n_startup_trials=BATCH, constant_liar=True)
        self._study = optuna.create_study(sampler=sampler)
        self._trials: dict[Config, Any] = {}
        self._seen: set[Config] = set()
        self._first = list(first)
        for measurement in known:
            self._seen.add(measurement.config)
            self._learn(measurement)

    def ask(self) -> Sequence[Config]:
        batch: list[Config] = []
        for _ in range(BATCH * TRIALS_PER_CONFIG):
            if len(batch) == min(BATCH, self._left):
                break
            config = self._propose()
            if config is not None:
                batch.append(config)
        self._left -= len(batch)
        return batch

    def _propose(self) -> Config | None:
        if self._first:
            config = self._first.pop(0)
            self._study.enqueue_trial(self._indices(config))
        trial = self._study.ask()
        chosen = {name: trial.suggest_categorical(name, range(len(values))) for name, values in self._choices.items()}
        found = self._by_values.get(_key({name: self._choices[name][index] for name, index in chosen.items()}))
        if found is None or found in self._seen:
            self._study.tell(trial, state=self._optuna.trial.TrialState.PRUNED)
            return None
        self._seen.add(found)
        self._trials[found] = trial
        return found

    def tell(self, taken: Iterable[Measurement]) -> None:
        for measurement in taken:
            trial = self._trials.pop(measurement.config, None)
            if trial is None:
                continue
            if measurement.median is None:
                self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
            else:
                self._study.tell(trial, measurement.median)

    def _learn(self, measurement: Measurement) -> None:
        if measurement.median is None or _values(measurement.config) not in self._by_values:
            return
        distributions = {
            name: self._optuna.distributions.CategoricalDistribution(range(len(values)))
            for name, values in self._choices.items()
        }
        params = self._indices(measurement.config)
        self._study.add_trial(
            self._optuna.trial.create_trial(params=params, distributions=distributions, value=measurement.median)
        )

    def _indices(self, config: Config) -> dict[str, int]:
        given = _given(config)
        return {name: values.index(given.get(name)) for name, values in self._choices.items()}


def _given(config: Config) -> dict[str, Scalar]:
    return {**config.params, **config.options}


def _key(given: Mapping[str, Scalar]) -> tuple[Any, ...]:
    return tuple(sorted((name, repr(value)) for name, value in given.items() if value is not None))


def _values(config: Config) -> tuple[Any, ...]:
    return _key(_given(config))


def _choices(configs: Iterable[Config]) -> dict[str, list[Scalar]]:
    """Each parameter's values, in order of appearance."""
    given = [_given(config) for config in configs]
    names = dict.fromkeys(name for each in given for name in each)
    return {name: list({repr(each.get(name)): each.get(name) for each in given}.values()) for name in names}
