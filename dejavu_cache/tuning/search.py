"""Spaces of configs by their parameters, and which of many configs a tune measures."""

from __future__ import annotations

import inspect
import itertools
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..errors import SettingsError, did_you_mean
from ..model.record import Measurement
from ..model.scenario import Config
from ..triton_internals.environment import current_target, is_interpreting

if TYPE_CHECKING:
    from ..prediction.slowdown_model import SlowdownModel

BATCH = 4
"""Configs that are proposed together at least; as many as compile together take no longer."""

SEED = 0

MOST_CANDIDATES = 1000
"""Configs among which a model chooses; of a larger space, as many are drawn."""

AT_LEAST = 8
"""Configs that are measured in any case: fewer say nothing about the model's errors."""

RISK = 0.02
"""Bound of the probability that a config left out is faster by more than is allowed. It adds up the
probabilities of all, as if one of them said nothing of the others."""


@dataclass
class PredictedSearch:
    """The configs that a model expects to be fast, in batches, until the others need no look.

    A config left out may be faster by the share `loss`; if that is 0, only the limit ends the
    search. None is drawn at random: that found no better configs than as many more expected ones.
    """

    _model: SlowdownModel
    _first: Sequence[Config]
    _left: int
    _loss: float
    _together: int = BATCH

    @property
    def is_settled(self) -> bool:
        """Whether what is left out is unlikely to be faster by more than may be lost."""
        if not self._loss or len(self._model.measured) < AT_LEAST:
            return False
        return self._model.chance_left(self._loss) < RISK

    def ask(self, batches: int = 1) -> list[Config]:
        """Return the next batches as they are if all turns out as expected; none at the end."""
        if self.is_settled:
            return []
        size = min(self._together * batches, self._left)
        batch = [*dict.fromkeys([*self._first, *self._model.propose(size)])][:size]
        self._first = ()
        self._left -= len(batch)
        return batch

    def tell(self, measurements: Iterable[Measurement]) -> None:
        """Note the proposals' medians, or their failures."""
        for measurement in measurements:
            self._model.note(measurement.config, measurement.median)


def draw_candidates(configs: Sequence[Config], needed: Collection[Config]) -> list[Config]:
    """Return the configs among which a model chooses: all, or a part that has the needed ones."""
    if len(configs) <= MOST_CANDIDATES:
        return [*configs]
    drawn = random.Random(SEED).sample(configs, MOST_CANDIDATES)
    return [*dict.fromkeys([*needed, *drawn])]


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
        """Return the configs on a vendor's GPUs: `cuda`, `hip`, or empty, as in the interpreter.

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
