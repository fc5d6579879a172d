"""Ask a kernel's pruning which configs may run, for each launch that it could tell from others."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from ..triton_internals.argument_reads import Part, Place, Reads
from ..triton_internals.config_names import describe
from ..triton_internals.upstream import Autotuner

__all__ = ["PrunedConfigs", "Pruning", "can_prune"]

_MOST_NODES = 1 << 15
"""Values and answers that are kept; of an argument such as a seed, each value may have its own."""

_NOT_ARGUMENTS = frozenset({"grid", "warmup"})


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
    pruning leaves for one of them may be wrong for another. Its answers are leaves of a tree: each
    branch is an argument that was read, with a child for each of its values, so that an answer
    holds for the launches that agree in all that was read for it. The grid does not count.

    Args:
        autotuner: the `CachedAutotuner` whose launches are pruned.

    Attributes:
        find: function from a launch's device, positional arguments, and keyword arguments but
            `grid` and `warmup`, to what pruning has left for launches that look the same. It
            raises an error if pruning was not asked yet, or an argument cannot be compared.
    """

    def __init__(self, autotuner: Any) -> None:
        """Set up the pruning without asking it."""
        self._autotuner = autotuner
        # By device and form: the number of positional arguments, and the names of the others.
        # A branch is (place of an argument, part of it that was read, children by its value).
        self._trees: dict[int, dict[Hashable, Any]] = {}
        self._kept = 0
        self._answers: dict[tuple[Hashable, ...], PrunedConfigs] = {}
        self.find = self._finder()

    def _finder(self) -> Callable[[int, Sequence[Any], Mapping[str, Any]], PrunedConfigs]:
        """Return `find`, whose names are all local since the hot path calls it."""
        trees = self._trees

        def find(device: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
            node = trees[device][(len(args), *kwargs) if kwargs else len(args)]
            while node.__class__ is tuple:
                place, part, children = node
                value = args[place] if place.__class__ is int else kwargs[place]
                node = children[value if value.__class__ is int else part(value)]
            return node

        return find

    def configs_for(
        self, device: int, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> PrunedConfigs:
        """Return the configs that pruning leaves for a launch.

        Args:
            device: the device's index.
            args: the launch's positional arguments.
            kwargs: its keyword arguments, `grid` and `warmup` included.
        """
        given = {name: value for name, value in kwargs.items() if name not in _NOT_ARGUMENTS}
        with contextlib.suppress(Exception):
            return self.find(device, args, given)
        by_position = enumerate(self._autotuner.arg_names[: len(args)])
        reads = Reads({name: place for place, name in by_position} | {name: name for name in given})
        pruned = self._ask(reads, args, kwargs)
        with contextlib.suppress(Exception):  # what cannot be compared may differ at each launch
            self._keep(device, args, given, reads.noted, pruned)
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
        if len(self._answers) >= _MOST_NODES:
            self._answers.clear()
        return self._answers.setdefault(key, PrunedConfigs(configs))

    def _keep(
        self,
        device: int,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        noted: Iterable[tuple[Place, Part]],
        pruned: PrunedConfigs,
    ) -> None:
        """Put an answer into the tree, below a branch for each read."""
        if self._kept >= _MOST_NODES:
            self._trees.clear()
            self._kept = 0
        unplaced = dict.fromkeys(noted)
        siblings = self._trees.setdefault(device, {})
        value: Hashable = (len(args), *kwargs) if kwargs else len(args)
        while (node := siblings.get(value)).__class__ is tuple or unplaced:
            if node.__class__ is not tuple:
                node = siblings[value] = (*next(iter(unplaced)), {})
                self._kept += 1
            place, part, siblings = node
            unplaced.pop((place, part), None)
            argument = args[place] if isinstance(place, int) else kwargs[place]
            value = argument if argument.__class__ is int else part(argument)
        siblings[value] = pruned
        self._kept += 1


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
