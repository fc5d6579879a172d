"""What a kernel's decorator and its program declare: options, identity, keys, buckets, pruning."""

from __future__ import annotations

import uuid
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..model.buckets import Exact
from ..model.scenario import Context, Kernel, Problem
from ..policy import config_with
from ..settings import current_settings
from ..system.notices import warn_once
from ..triton_internals.argument_reads import Answers, ReadArguments, noting_reads
from ..triton_internals.compilation import note_settings
from ..triton_internals.config_names import DeclaredConfigs, describe
from ..triton_internals.environment import current_environment
from ..triton_internals.identity import PROCESS, KernelIdentity, find_jit_function, identify
from ..triton_internals.scenario_key import ScenarioKey
from ..triton_internals.versions import Autotuner
from ..tuning.benchmark_methods import benchmark_name, wall_clock
from ..tuning.device_timer import DeviceTimer
from ..tuning.result_check import CheckOptions
from .options import Consensus
from .request import LOSS, TuningBudget

CHECKED = CheckOptions()
"""How results are compared where the author does not say."""


@dataclass(frozen=True, eq=False)
class Declaration:
    """What an autotuner's attributes say of its kernel, and what follows from them.

    It never changes: the autotuner makes another one after a program has assigned something, so
    that a thread sees all of the former declaration or all of the new one.

    Attributes:
        name: the kernel's qualified name.
        function: Triton's `JITFunction`, or None if the kernel is something else.
        keys: the names of the key arguments, as the program gave them.
        listed: the configs as they were, if they are a list, which may change in place.
        options: the kernel's options.
        key: the identity by Triton's key of the kernel.
        source: the key of the kernel's code in records; a unique one if nothing is stored.
        not_stored: why the kernel's timings stay in this process, or None if they are stored.
        consensus: whether ranks choose their configs together.
        scenario_key: makes a launch's scenario.
        problem: what is tuned, as records have it.
        prunes: whether pruning may leave out a config of some launch.
        pruning: asks anew within a bucket; None if a key's first launch answers for all.
        has_buckets: whether values of a key argument count as equal.
        exact: the key arguments for whose value no other value may stand in.
        budget: how much tuning a scenario gets.
        check: how results are compared before a config may win; None where they are not.
        contexts: the contexts that were asked for, by device.
    """

    name: str
    function: Any
    keys: Sequence[str]
    listed: list[Any] | None
    options: Mapping[str, Any]
    key: KernelIdentity
    source: str
    not_stored: str | None
    consensus: Consensus
    scenario_key: ScenarioKey
    problem: Problem
    prunes: bool
    pruning: Pruning | None
    has_buckets: bool
    exact: frozenset[str]
    budget: TuningBudget
    check: CheckOptions | None
    contexts: dict[int, Context] = field(default_factory=dict)

    @classmethod
    def of(
        cls, autotuner: Any, name: str, options: Mapping[str, Any], code: str | None = None
    ) -> Declaration:
        """Return what an autotuner declares now.

        The code is what Triton generates for the kernel, if that is not what its key stands for.
        """
        configs, settings, buckets = autotuner.configs, current_settings(), options["buckets"]
        key = identify(autotuner.fn, configs)
        identity = key if code is None else key.with_code(code)
        method, why_unnamed = benchmark_method(autotuner, options)
        not_stored = identity.unstored or why_unnamed
        if not_stored:
            say_unstored(name, not_stored)
        names = [key for key in autotuner.keys if key in autotuner.arg_names]
        wide = {
            name: bucket
            for name, bucket in buckets.items()
            if name in names and not isinstance(bucket, Exact)
        }
        has_pruning = autotuner.early_config_prune or autotuner.perf_model
        # Triton does not ask pruning about a single config.
        prunes = len(configs) > 1 and bool(has_pruning or not _is_by_triton(autotuner))
        is_per_launch = options.get("prune_per") != "scenario"
        return cls(
            name=name,
            function=find_jit_function(autotuner),
            keys=[*autotuner.keys],
            listed=[*configs] if isinstance(configs, list) else None,
            options=options,
            key=key,
            source=uuid.uuid4().hex if not_stored else identity.source or uuid.uuid4().hex,
            not_stored=not_stored,
            # Where nothing is stored, nothing tells whether the other ranks' kernel is this one.
            consensus="none" if not_stored else options.get("consensus") or settings.consensus,
            scenario_key=ScenarioKey(autotuner.fn, names, wide, configs),
            problem=Problem(keys=tuple(names), buckets=wide, method=method),
            prunes=prunes,
            pruning=Pruning(autotuner) if prunes and wide and is_per_launch else None,
            has_buckets=bool(wide),
            exact=frozenset(buckets.keys() - wide.keys()),
            budget=TuningBudget(
                seconds=options.get("tune_seconds"),
                configs=options.get("tune_configs"),
                loss=options.get("tune_loss", LOSS),
            ),
            check=(options.get("check", CHECKED) or None) if settings.check else None,
        )

    def context(self, device: int) -> Context:
        """Return the context of the kernel's records on the device of an index."""
        environment = current_environment(device)
        if self.function is not None:
            note_settings(self.function, environment.variables)
        context = self.contexts.get(device)
        if context is None or context.environment != environment:
            self.contexts[device] = context = Context(
                kernel=Kernel(name=self.name, source=self.source),
                environment=environment,
                problem=self.problem,
            )
        return context


def say_unstored(kernel: str, reason: str) -> None:
    """Warn once for a kernel that its timings stay in this process."""
    warn_once(f"identity {kernel}", f"{kernel} is tuned but not stored: {reason}")


def benchmark_method(autotuner: Any, options: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return the benchmark method's name, and why it means nothing to another process, or None."""
    bench = autotuner.__dict__.get("do_bench") or autotuner._do_bench  # a program may assign one
    if bench is None or bench is wall_clock or isinstance(bench, DeviceTimer):
        return "wall" if autotuner._interpreted else options.get("method", "events-cold"), None
    try:
        return f"custom:{benchmark_name(bench)}", None
    except (TypeError, OSError) as error:
        name = f"custom:{type(bench).__qualname__} {PROCESS} {id(bench)}"
        return name, f"its benchmark function: {error}"


def default_config(
    autotuner: Any, options: Mapping[str, Any], kwargs: Mapping[str, Any], declared: DeclaredConfigs
) -> Any:
    """Return the default config, or the first one left if it is left out or not declared.

    The autotuner has the launch's positional arguments as `nargs`.

    Raises:
        ValueError: pruning leaves no config, for which Triton raises the same.
    """
    if not declared:
        raise ValueError(f"{autotuner._name}: pruning leaves no config for this launch")
    configs, wanted = autotuner.configs, options.get("default")
    if callable(wanted):
        named, names = {**autotuner.nargs, **kwargs}, autotuner.arg_names
        wanted = wanted({name: value for name, value in named.items() if name in names})
    default = config_with(wanted, configs) if isinstance(wanted, Mapping) else wanted
    described = describe(configs[0] if default is None else default)
    if wanted is not None and (
        default is None or not (described in declared or described in map(describe, configs))
    ):
        kernel = autotuner._name
        warn_once(
            f"default {kernel}",
            f"{kernel}: no declared config is its default ({wanted}): the first one is used",
        )
        described = describe(configs[0])
    # The declared one, with the hook that the kernel declares.
    return declared.get(described) or next(iter(declared.values()))


class PrunedConfigs(NamedTuple):
    """The configs that pruning leaves for a launch.

    Attributes:
        configs: the `triton.Config`s, in order.
        key: is equal for equal configs, while the kernel declares the same ones.
    """

    configs: Sequence[Any]
    key: Hashable


class Pruning(Answers):
    """The pruning of one kernel with buckets: it is asked again where what it reads differs.

    Triton asks once per key, and a bucket puts launches of different values under one key. What
    pruning leaves for one of them may be wrong for another.
    """

    def __init__(self, autotuner: Any) -> None:
        """Set up the pruning without asking it."""
        super().__init__(autotuner.arg_names, self._prune)
        self._autotuner = autotuner

    def _prune(
        self, read: set[str], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> PrunedConfigs:
        """Ask pruning about a launch, and note what it reads."""
        autotuner = self._autotuner._copy_with(args)
        named: Any = dict(kwargs)
        if _is_by_triton(autotuner):  # which gives the arguments to these two functions only
            if autotuner.early_config_prune:
                autotuner.early_config_prune = noting_reads(autotuner.early_config_prune, read)
            if autotuner.perf_model:
                autotuner.perf_model = noting_reads(autotuner.perf_model, read)
        else:
            autotuner.nargs = ReadArguments(autotuner.nargs, read)
            named = ReadArguments(named, read)
        configs = list(autotuner.prune_configs(named))
        declared = set(map(id, autotuner.configs))
        # A pruning function may return configs of its own making, which count by their content.
        key = tuple(
            id(config) if id(config) in declared else (describe(config), config.pre_hook)
            for config in configs
        )
        return PrunedConfigs(configs, key)


def _is_by_triton(autotuner: Any) -> bool:
    """Return whether an autotuner prunes by Triton's own method."""
    return getattr(autotuner.prune_configs, "__func__", None) is Autotuner.prune_configs
