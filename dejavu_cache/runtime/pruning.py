"""Ask a kernel's pruning which configs may run, for each launch that it could tell from others."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from ..triton_internals.config_names import describe
from ..triton_internals.upstream import Autotuner
from ..triton_internals.visible_value import visible_value

__all__ = ["PrunedConfigs", "Pruning", "can_prune"]

_MOST_LAUNCHES = 1 << 14
"""Distinct launches whose answers are kept; an argument such as a seed differs at each launch."""

_NOT_ARGUMENTS = frozenset({"grid", "warmup"})


class PrunedConfigs(NamedTuple):
    """The configs that pruning leaves for a launch.

    Attributes:
        key: equal for two launches that are left the same configs in the same order.
        configs: the `triton.Config`s.
    """

    key: Hashable
    configs: Sequence[Any]


class Pruning:
    """The pruning of one kernel, asked once for all launches that look the same to it.

    Triton asks once per key, and a bucket puts launches of different values under one key. What
    pruning leaves for one of them may be wrong for another, so a launch counts by the exact values
    of all its arguments. The grid does not count.

    Args:
        autotuner: the `CachedAutotuner` whose launches are pruned.
    """

    def __init__(self, autotuner: Any) -> None:
        """Set up the pruning without asking it."""
        self._autotuner = autotuner
        self._answers: dict[tuple[Any, ...], PrunedConfigs] = {}

    def configs_for(
        self, device: int, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> PrunedConfigs:
        """Return the configs that pruning leaves for a launch.

        Args:
            device: the device's index.
            args: the launch's positional arguments.
            kwargs: its keyword arguments, `grid` and `warmup` included.
        """
        try:
            key = (
                device,
                *map(visible_value, args),
                *(
                    (name, visible_value(value))
                    for name, value in kwargs.items()
                    if name not in _NOT_ARGUMENTS
                ),
            )
        except Exception:  # an argument that cannot be compared: two launches may always differ
            return self._ask(args, kwargs)
        answer = self._answers.get(key)
        if answer is None:
            if len(self._answers) >= _MOST_LAUNCHES:
                self._answers.clear()
            self._answers[key] = answer = self._ask(args, kwargs)
        return answer

    def _ask(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> PrunedConfigs:
        autotuner = copy.copy(self._autotuner)
        autotuner.nargs = dict(zip(autotuner.arg_names, args, strict=False))
        configs = list(autotuner.prune_configs(dict(kwargs)))
        places = {id(config): place for place, config in enumerate(autotuner.configs)}
        # A pruning function may return configs of its own making, which count by their content.
        key = tuple(
            places[id(config)] if id(config) in places else (describe(config), config.pre_hook)
            for config in configs
        )
        return PrunedConfigs(key, configs)


def can_prune(autotuner: Any) -> bool:
    """Return whether an autotuner's pruning may leave out a config of some launch.

    Triton does not ask it about a single config.
    """
    if len(autotuner.configs) < 2:
        return False
    if getattr(autotuner.prune_configs, "__func__", None) is not Autotuner.prune_configs:
        return True
    if autotuner.early_config_prune:
        return True
    if not autotuner.perf_model:
        return False
    top_k, count = autotuner.configs_top_k, len(autotuner.configs)
    if isinstance(top_k, float):
        top_k = int(count * top_k)
    return bool(top_k < count)
