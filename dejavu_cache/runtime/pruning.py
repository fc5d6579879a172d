"""Ask a kernel's pruning which configs may run, for each launch that it could tell from others."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from ..triton_internals.argument_reads import Answers, Reads
from ..triton_internals.config_names import describe
from ..triton_internals.versions import Autotuner

__all__ = ["PrunedConfigs", "Pruning", "can_prune"]

_MOST_ANSWERS = 1 << 15
"""Different sets of configs that are kept."""


class PrunedConfigs:
    """The configs that pruning leaves for some launches, which share this object as a key.

    Attributes:
        configs: the `triton.Config`s, in order.
    """

    __slots__ = ("configs",)

    def __init__(self, configs: Sequence[Any]) -> None:
        """Keep the configs."""
        self.configs = configs


class Pruning:
    """The pruning of one kernel with buckets, asked once for launches that look the same to it.

    Triton asks once per key, and a bucket puts launches of different values under one key. What
    pruning leaves for one of them may be wrong for another.

    Args:
        autotuner: the `CachedAutotuner` whose launches are pruned.

    Attributes:
        find: as of `Answers`: what pruning has left for launches that look the same.
    """

    def __init__(self, autotuner: Any) -> None:
        """Set up the pruning without asking it."""
        self._autotuner = autotuner
        self._left: dict[tuple[Hashable, ...], PrunedConfigs] = {}
        self._answers = Answers(autotuner.arg_names, self._ask)
        self.find = self._answers.find

    def configs_for(
        self, device: int, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> PrunedConfigs:
        """Return the configs that pruning leaves for a launch; see `Answers.answer`."""
        pruned: PrunedConfigs = self._answers.answer(device, args, kwargs)
        return pruned

    def _ask(self, reads: Reads, args: Sequence[Any], kwargs: Mapping[str, Any]) -> PrunedConfigs:
        """Ask pruning about a launch, and note what it reads."""
        autotuner = copy.copy(self._autotuner)
        nargs, kwargs = dict(zip(autotuner.arg_names, args, strict=False)), dict(kwargs)
        if _is_by_triton(autotuner):  # which gives the arguments to these two functions only
            if autotuner.early_config_prune:
                autotuner.early_config_prune = reads.recorded(autotuner.early_config_prune)
            if autotuner.perf_model:
                autotuner.perf_model = reads.recorded(autotuner.perf_model)
        else:
            nargs, kwargs = reads.mapping(nargs), reads.mapping(kwargs)
        autotuner.nargs = nargs
        with reads.watched():
            configs = list(autotuner.prune_configs(kwargs))
        declared = set(map(id, autotuner.configs))
        # A pruning function may return configs of its own making, which count by their content.
        key = tuple(
            id(config) if id(config) in declared else (describe(config), config.pre_hook)
            for config in configs
        )
        if len(self._left) >= _MOST_ANSWERS:
            self._left.clear()
        return self._left.setdefault(key, PrunedConfigs(configs))


def _is_by_triton(autotuner: Any) -> bool:
    """Return whether an autotuner prunes by Triton's own method."""
    return getattr(autotuner.prune_configs, "__func__", None) is Autotuner.prune_configs


def can_prune(autotuner: Any) -> bool:
    """Return whether an autotuner's pruning may leave out a config of some launch.

    Triton does not ask it about a single config.
    """
    if len(autotuner.configs) < 2:
        return False
    if not _is_by_triton(autotuner):
        return True
    if autotuner.early_config_prune:
        return True
    if not autotuner.perf_model:
        return False
    top_k, count = autotuner.configs_top_k, len(autotuner.configs)
    if isinstance(top_k, float):
        top_k = int(count * top_k)
    return bool(top_k < count)
