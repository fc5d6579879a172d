"""Spaces of configs by their parameters, and which of many configs a tune measures."""

from __future__ import annotations

import inspect
import itertools
import random
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from ..errors import SettingsError, did_you_mean
from ..model.record import Measurement
from ..model.scenario import Config
from ..triton_internals.environment import current_target, is_interpreting

__all__ = ["ConfigSpace", "OptunaSearch", "config_space"]


BATCH = 16
"""Configs that Optuna proposes together, so that they compile together."""

SEED = 0


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

    Raises:
        SettingsError: Optuna is not installed.
    """

    def __init__(
        self,
        declared: Iterable[Config],
        measured: Iterable[Measurement],
        first: Sequence[Config],
        budget: int,
    ) -> None:
        """Set up the sampler; the arguments are described at the class."""
        try:
            import numpy as np
            import optuna
        except ImportError as error:
            raise SettingsError(
                "tune_configs of a config_space needs Optuna: pip install 'dejavu-cache[sweep]'"
            ) from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna, self._left = optuna, budget
        self._configs = list(declared)
        # Of several that share as many values, any may be the first.
        random.Random(SEED).shuffle(self._configs)
        self._index_of = {config: index for index, config in enumerate(self._configs)}
        settings = [{**config.params, **config.options} for config in self._configs]
        names = list(dict.fromkeys(name for setting in settings for name in setting))
        # Values are told apart by their text, since True, 1 and 1.0 are equal in Python.
        self._rows = np.array([[repr(setting.get(name)) for name in names] for setting in settings])
        self._unknown = np.ones(len(settings), dtype=bool)
        self._distributions = {
            name: optuna.distributions.CategoricalDistribution(list(dict.fromkeys(column)))
            for name, column in zip(names, self._rows.T.tolist(), strict=True)
        }
        with warnings.catch_warnings():
            # `constant_liar`, called experimental, spreads the proposals of a batch.
            warnings.simplefilter("ignore")
            sampler = optuna.samplers.TPESampler(
                seed=SEED, n_startup_trials=BATCH, constant_liar=True
            )
        self._study = optuna.create_study(sampler=sampler)
        self._trials: dict[Config, Any] = {}
        for measurement in measured:
            index = self._index_of.get(measurement.config)
            if index is not None:
                self._unknown[index] = False
                self._study.enqueue_trial(self._params(index))
                self._trials[measurement.config] = self._study.ask(self._distributions)
                self.tell([measurement])
        for config in first:
            self._study.enqueue_trial(self._params(self._index_of[config]))

    def ask(self) -> list[Config]:
        """Return the next batch of proposals; none once the budget is spent."""
        batch: list[Config] = []
        while len(batch) < BATCH and self._left and self._unknown.any():
            trial = self._study.ask(self._distributions)
            alike = (self._rows == list(trial.params.values())).sum(axis=1)
            alike[~self._unknown] = -1
            index = int(alike.argmax())
            if alike[index] < len(trial.params):
                self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
                self._study.enqueue_trial(self._params(index))
                trial = self._study.ask(self._distributions)
            self._unknown[index] = False
            self._trials[self._configs[index]] = trial
            batch.append(self._configs[index])
            self._left -= 1
        return batch

    def tell(self, measurements: Iterable[Measurement]) -> None:
        """Report the proposals' medians, or their failures, to the sampler."""
        for measurement in measurements:
            trial, median = self._trials.pop(measurement.config), measurement.median
            state = None if median is not None else self._optuna.trial.TrialState.FAIL
            self._study.tell(trial, median, state=state)

    def _params(self, index: int) -> dict[str, str]:
        return dict(zip(self._distributions, self._rows[index].tolist(), strict=True))


Condition = Callable[..., Any]

OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
"""What `triton.Config` takes beside the meta-parameters."""


class ConfigSpace(Sequence[Any]):
    """The sequence of `triton.Config`s with all combinations of values that meet some conditions.

    It is built when it is first read, since some parameters depend on the GPU's vendor, and a
    module may be imported on a machine without a GPU.
    """

    def __init__(
        self,
        choices: Mapping[str, Sequence[Any]],
        vendors: Mapping[str, Mapping[str, Sequence[Any]]],
        where: Sequence[Condition],
        pre_hook: Callable[..., Any] | None,
    ) -> None:
        """Set up the space without building it; `config_space` describes the arguments."""
        self._choices = choices
        self._vendors = vendors
        self._where = [(condition, inspect.signature(condition).parameters) for condition in where]
        self._pre_hook = pre_hook
        for name, parameter in itertools.chain(*(named.items() for _, named in self._where)):
            if name not in self.names and parameter.default is inspect.Parameter.empty:
                suggestion = did_you_mean(name, sorted(self.names))
                raise SettingsError(f"where looks at {name}: {suggestion}")

    @property
    def names(self) -> set[str]:
        """The names of all parameters on any vendor's GPUs; the space is not built for them."""
        return {*self._choices, *itertools.chain(*self._vendors.values())}

    def for_vendor(self, vendor: str) -> list[Any]:
        """Return the configs on a vendor's GPUs.

        Args:
            vendor: `cuda`, `hip`, or empty, as under the interpreter.

        Raises:
            SettingsError: no combination meets the conditions.
        """
        choices = {**self._choices, **self._vendors.get(vendor, {})}
        combinations = (
            dict(zip(choices, values, strict=True))
            for values in itertools.product(*choices.values())
        )
        configs = [config for config in map(self._config, combinations) if config is not None]
        if not configs:
            raise SettingsError(
                f"no combination of {', '.join(choices)} meets the conditions in where"
            )
        return configs

    def _config(self, combination: Mapping[str, Any]) -> Any:
        """Return the config of a combination, or None if a condition is false for it.

        A condition holds if it needs a parameter that only another vendor has.
        """
        import triton

        for condition, parameters in self._where:
            passed = {name: combination[name] for name in parameters if name in combination}
            needed = self.names & parameters.keys()
            if needed == passed.keys() and not condition(**passed):
                return None
        options = {name: value for name, value in combination.items() if name in OPTIONS}
        params = {name: value for name, value in combination.items() if name not in OPTIONS}
        return triton.Config(params, **options, pre_hook=self._pre_hook)

    @cached_property
    def _configs(self) -> list[Any]:
        return self.for_vendor("" if is_interpreting() else str(current_target().backend))

    def __getitem__(self, index: Any) -> Any:
        """Return one config, or a list of them."""
        return self._configs[index]

    def __len__(self) -> int:
        """Return the number of configs."""
        return len(self._configs)

    def __bool__(self) -> bool:
        """Return True without building the space: an empty one raises when it is built."""
        return True


def config_space(
    params: Mapping[str, Iterable[Any]],
    *,
    num_warps: Iterable[int] = (4,),
    num_stages: Iterable[int] = (3,),
    num_ctas: Iterable[int] = (1,),
    maxnreg: Iterable[int | None] = (None,),
    where: Condition | Sequence[Condition] = (),
    cuda: Mapping[str, Iterable[Any]] | None = None,
    hip: Mapping[str, Iterable[Any]] | None = None,
    pre_hook: Callable[..., Any] | None = None,
) -> ConfigSpace:
    """Return the configs with all combinations of values, in the order in which they are written.

    Args:
        params: meta-parameters, each with its values. The first values of all make the first
            config: the default, unless the decorator names another.
        num_warps: numbers of warps, as in `triton.Config`.
        num_stages: numbers of pipeline stages, as in `triton.Config`.
        num_ctas: numbers of CTAs in a cluster, as in `triton.Config`.
        maxnreg: most registers per thread, as in `triton.Config`; None for no limit.
        where: a condition, or several. Each names the parameters that it needs; a combination for
            which it is false is left out: `where=lambda M, num_warps: M >= 16 * num_warps`.
        cuda: parameters that only NVIDIA's compiler has, or other values for those above.
        hip: parameters that only AMD's compiler has, or other values for those above.
        pre_hook: the hook that all configs share.

    Raises:
        SettingsError: a condition needs a parameter that does not exist, a parameter has no values,
            or an option is among the meta-parameters.

    Example:
        >>> space = config_space({"BLOCK": [64, 128]}, where=lambda BLOCK: BLOCK > 64)
    """
    for name in params:
        if name in OPTIONS:  # else the option's own value would replace it without a word
            raise SettingsError(
                f"config_space: {name} is among the meta-parameters: give it as an argument, "
                f"{name}={params[name]!r}"
            )
    options = (num_warps, num_stages, num_ctas, maxnreg)
    choices = {**params, **dict(zip(OPTIONS, options, strict=True))}
    return ConfigSpace(
        _as_tuples(choices),
        {"cuda": _as_tuples(cuda or {}), "hip": _as_tuples(hip or {})},
        [where] if callable(where) else where,
        pre_hook,
    )


def _as_tuples(choices: Mapping[str, Iterable[Any]]) -> dict[str, tuple[Any, ...]]:
    tuples = {name: tuple(values) for name, values in choices.items()}
    for name, values in tuples.items():
        if not values:
            raise SettingsError(f"{name} has no values to choose from")
    return tuples
