"""Spaces of configs by their parameters, and the order in which a tune measures configs."""

from __future__ import annotations

import inspect
import itertools
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, Protocol, get_args, overload

from ..errors import SettingsError, did_you_mean
from ..model.record import Measurement
from ..model.scenario import Config
from ..triton_internals.environment import current_target, is_interpreting

__all__ = [
    "ConfigSpace",
    "Exhaustive",
    "OptunaSearch",
    "Search",
    "Strategy",
    "config_space",
]


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


Strategy = Literal["exhaustive", "optuna"]

Condition = Callable[..., Any]

OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
"""What `triton.Config` takes beside the meta-parameters."""


class ConfigSpace(Sequence[Any]):
    """The sequence of `triton.Config`s with all combinations of values that meet some conditions.

    It is built when it is first read, since some parameters depend on the GPU's vendor, and a
    module may be imported on a machine without a GPU.

    Attributes:
        search: how the space is tuned.
        budget: how many configs of a scenario are measured at the most; None: all.
    """

    def __init__(
        self,
        choices: Mapping[str, Sequence[Any]],
        vendors: Mapping[str, Mapping[str, Sequence[Any]]],
        where: Sequence[Condition],
        pre_hook: Callable[..., Any] | None,
        search: Strategy,
        budget: int | None,
    ) -> None:
        """Set up the space without building it; `config_space` describes the arguments."""
        self._choices = choices
        self._vendors = vendors
        self._where = [_by_name(condition, self.names) for condition in where]
        self._pre_hook = pre_hook
        self.search = search
        self.budget = budget

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
            for values in itertools.product(*map(tuple, choices.values()))
        )
        configs = [
            self._config(values_by_name)
            for values_by_name in combinations
            if all(holds(values_by_name) for holds in self._where)
        ]
        if not configs:
            raise SettingsError(
                f"no combination of {', '.join(choices)} meets the conditions in where"
            )
        return configs

    def _config(self, values_by_name: Mapping[str, Any]) -> Any:
        import triton

        options = {name: value for name, value in values_by_name.items() if name in OPTIONS}
        params = {name: value for name, value in values_by_name.items() if name not in OPTIONS}
        return triton.Config(params, **options, pre_hook=self._pre_hook)

    @cached_property
    def _configs(self) -> list[Any]:
        return self.for_vendor(_vendor())

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        """Return one config, or a list of them."""
        return self._configs[index]

    def __len__(self) -> int:
        """Return the number of configs."""
        return len(self._configs)

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the configs in their order."""
        return iter(self._configs)

    def __bool__(self) -> bool:
        """Return True without building the space: an empty one raises when it is built."""
        return True

    def __repr__(self) -> str:
        """Return the parameters and their values."""
        choices = ", ".join(f"{name}={list(values)}" for name, values in self._choices.items())
        return f"config_space({choices})"


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
    search: Strategy = "exhaustive",
    budget: int | None = None,
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
        search: `exhaustive` measures all; `optuna` measures those that Optuna's sampler proposes.
        budget: the most configs of a scenario to measure, 1 or more. None: all.

    Raises:
        SettingsError: a condition needs a parameter that does not exist, a parameter has no values,
            the budget is below 1, or `search="optuna"` has no budget.

    Example:
        >>> space = config_space({"BLOCK": [64, 128]}, where=lambda BLOCK: BLOCK > 64)
    """
    for name, given in (("params", params), ("cuda", cuda or {}), ("hip", hip or {})):
        if not isinstance(given, Mapping):
            raise SettingsError(
                f'config_space: {name}={given!r}: give values by name, as in {{"BLOCK": [64, 128]}}'
            )
    for name in params:
        if name in OPTIONS:  # else the option's own value would replace it without a word
            raise SettingsError(
                f"config_space: {name} is among the meta-parameters: give it as an argument, "
                f"{name}={params[name]!r}"
            )
    choices = {
        **params,
        "num_warps": num_warps,
        "num_stages": num_stages,
        "num_ctas": num_ctas,
        "maxnreg": maxnreg,
    }
    if search not in get_args(Strategy):
        raise SettingsError(f"search={search!r}: {did_you_mean(search, get_args(Strategy))}")
    if search == "optuna" and budget is None:
        raise SettingsError(
            'search="optuna" needs a budget: how many configs of a scenario it may measure'
        )
    if budget is not None and not (_is_whole(budget) and budget >= 1):
        raise SettingsError(f"budget={budget!r}: give a number of configs, 1 or more")
    if not (pre_hook is None or callable(pre_hook)):
        raise SettingsError(f"pre_hook={pre_hook!r}: give a function")
    conditions = [where] if callable(where) or not isinstance(where, Iterable) else [*where]
    for condition in conditions:
        if not callable(condition):
            raise SettingsError(f"where={condition!r}: give a function of the parameters by name")
    return ConfigSpace(
        _as_tuples(choices),
        {"cuda": _as_tuples(cuda or {}), "hip": _as_tuples(hip or {})},
        conditions,
        pre_hook,
        search,
        budget,
    )


def _as_tuples(choices: Mapping[str, Iterable[Any]]) -> dict[str, tuple[Any, ...]]:
    tuples = {
        name: tuple(values) if _is_collection(values) else (values,)
        for name, values in choices.items()
    }
    for name, values in tuples.items():
        if not isinstance(name, str):
            raise SettingsError(f"config_space: {name!r} is no name of a parameter: give a string")
        if not values:
            raise SettingsError(f"{name} has no values to choose from")
        for value in values if name in OPTIONS else ():
            if not ((_is_whole(value) and value >= 0) or (value is None and name == "maxnreg")):
                raise SettingsError(f"{name}={value!r}: give whole numbers, such as [4, 8]")
    return tuples


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_collection(values: Any) -> bool:
    return isinstance(values, Iterable) and not isinstance(values, str)


def _by_name(condition: Condition, parameters: set[str]) -> Callable[[Mapping[str, Any]], bool]:
    """Return a condition as a function of a combination of values by name.

    It holds for combinations that lack a parameter that it needs, which another vendor has.
    """
    accepted = inspect.signature(condition).parameters
    takes_all = any(item.kind is inspect.Parameter.VAR_KEYWORD for item in accepted.values())
    wanted = [
        name
        for name, parameter in accepted.items()
        if parameter.default is inspect.Parameter.empty
        and parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    unknown = [name for name in wanted if name not in parameters]
    if unknown:
        raise SettingsError(
            f"where looks at {', '.join(unknown)}: {did_you_mean(unknown[0], sorted(parameters))}"
        )

    def holds(values_by_name: Mapping[str, Any]) -> bool:
        if not all(name in values_by_name for name in wanted):
            return True
        passed = {
            name: value for name, value in values_by_name.items() if takes_all or name in accepted
        }
        return bool(condition(**passed))

    return holds


def _vendor() -> str:
    if is_interpreting():
        return ""
    return str(current_target().backend)
