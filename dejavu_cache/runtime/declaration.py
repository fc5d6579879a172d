"""What a kernel's decorator and its program declare: options, identity, keys, buckets, pruning."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from ..errors import SettingsError
from ..model.buckets import Exact
from ..model.scenario import Context, Kernel, Problem, Scenario
from ..policy import config_with
from ..settings import current_settings
from ..system.notices import warn_once
from ..triton_internals.argument_reads import Answers, Reads
from ..triton_internals.compilation import note_settings
from ..triton_internals.config_names import DeclaredConfigs, describe
from ..triton_internals.environment import current_environment, unreadable_settings
from ..triton_internals.identity import PROCESS, KernelIdentity, find_jit_function, identify
from ..triton_internals.scenario_key import ScenarioKey
from ..triton_internals.versions import Autotuner
from ..tuning.benchmark_methods import method_name, wall_clock
from ..tuning.device_timer import DeviceTimer
from ..tuning.result_check import CheckOptions
from ..tuning.search import ConfigSpace
from .options import Consensus, KernelOptions
from .request import Request, TuningBudget

__all__ = [
    "Declaration",
    "PrunedConfigs",
    "Pruning",
    "benchmark_method",
    "default_config",
    "is_timed_by_triton",
    "why_unnamed",
]

_MOST_ANSWERS = 1 << 15
"""Different sets of configs that are kept."""


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
        has_buckets: whether values of a key argument count as equal.
        budget: how much tuning a scenario gets.
        check: how results are compared before a config may win; None where they are not.
        contexts: the contexts that were asked for, by device.
    """

    name: str
    function: Any
    keys: Sequence[str]
    listed: list[Any] | None
    options: KernelOptions
    key: KernelIdentity
    source: str
    not_stored: str | None
    consensus: Consensus
    scenario_key: ScenarioKey
    problem: Problem
    prunes: bool
    has_buckets: bool
    budget: TuningBudget
    check: CheckOptions | None
    contexts: dict[int, Context] = field(default_factory=dict)

    @classmethod
    def of(
        cls, autotuner: Any, name: str, options: KernelOptions, code: str | None = None
    ) -> Declaration:
        """Return what an autotuner declares now.

        Args:
            autotuner: the `CachedAutotuner`.
            name: the kernel's name.
            options: its options.
            code: what Triton generates for the kernel, if that is not what its key stands for.
        """
        configs, settings, buckets = autotuner.configs, current_settings(), options["buckets"]
        key = identify(autotuner.fn, (config.kwargs for config in configs))
        identity = key if code is None else key.with_code(code)
        method, why_unnamed_method = benchmark_method(autotuner, options)
        not_stored = identity.unstored or why_unnamed_method
        if not_stored:
            _say_unstored(name, not_stored)
        unnamed = why_unnamed(tuple(autotuner.arg_names))
        names = [] if unnamed else [key for key in autotuner.keys if key in autotuner.arg_names]
        wide = {name: bucket for name, bucket in buckets.items() if not isinstance(bucket, Exact)}
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
            scenario_key=ScenarioKey(autotuner.fn, names, buckets, configs),
            problem=Problem(
                keys=tuple(names),
                buckets={name: bucket for name, bucket in wide.items() if name in names},
                method=method,
            ),
            prunes=can_prune(autotuner),
            has_buckets=bool(wide),
            budget=_budget_of(configs, options),
            check=(options.get("check", CheckOptions()) or None) if settings.check else None,
        )

    def is_of(self, configs: Sequence[Any], keys: Sequence[str]) -> bool:
        """Return whether the lists of configs and keys are as they were: they change in place."""
        # Lists of the same objects are equal without a look into them, so this takes little time.
        is_same = self.listed is None or self.listed == configs
        return is_same and (self.keys == keys or self.keys == [*keys])

    def context(self, device: int) -> Context:
        """Return the context of the kernel's records on a device.

        Args:
            device: the device's index.
        """
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

    def request(
        self,
        autotuner: Any,
        device: int,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        configs: Sequence[Any] | None = None,
        context: Context | None = None,
    ) -> Request:
        """Return the request of a launch.

        Args:
            autotuner: a copy of the kernel's that only this request uses, with `nargs` set.
            device: the device's index.
            args: the launch's positional arguments.
            kwargs: its keyword arguments.
            configs: what pruning leaves, if it was asked.
            context: the context of the kernel's records there, if it was made.
        """
        if configs is None:
            configs = autotuner.prune_configs(dict(kwargs))
        declared = DeclaredConfigs(self.name, configs)
        scenario, unstored = self.scenario_key.launch_scenario(args, kwargs, device)
        context = context or self.context(device)
        if settings := unreadable_settings(context.environment.variables):
            unstored = f"{', '.join(settings)} has no text that stands for it"
        if unstored and not self.not_stored:
            _say_unstored(self.name, unstored)
        return Request(
            autotuner=autotuner,
            context=context,
            scenario=scenario,
            declared=declared,
            default=default_config(autotuner, self.name, self.options, kwargs, declared),
            exact=frozenset(
                name
                for name, bucket in self.options["buckets"].items()
                if isinstance(bucket, Exact)
            ),
            args=args,
            kwargs=dict(kwargs),
            budget=self.budget,
            check=self.check,
            prunes=self.prunes,
            not_stored=self.not_stored or unstored,
        )


def _say_unstored(kernel: str, reason: str) -> None:
    warn_once(f"identity {kernel}", f"{kernel} is tuned but not stored: {reason}")


def why_unnamed(arguments: Sequence[str]) -> str | None:
    """Return why no record can name a kernel's arguments, any of which may be a tensor, or None."""
    try:
        Scenario(dtypes=dict.fromkeys(arguments, "float32"))
    except ValidationError as error:
        reasons = "; ".join(problem["msg"] for problem in error.errors())
        return (
            f"no record can hold the names of its arguments: {reasons}: "
            "it is tuned by Triton, and nothing is recorded"
        )
    return None


def is_timed_by_triton(autotuner: Any) -> bool:
    """Return whether Triton has made a benchmark function of its deprecated `warmup` and `rep`."""
    return autotuner.num_warmups is not None or autotuner.num_reps is not None


def benchmark_method(autotuner: Any, options: KernelOptions) -> tuple[str, str | None]:
    """Return the benchmark method's name, and why it means nothing to another process, or None."""
    own, is_interpreted = autotuner._do_bench, autotuner._interpreted
    bench = autotuner.__dict__.get("do_bench", own)
    is_assigned = not (bench is own or bench is wall_clock or isinstance(bench, DeviceTimer))
    if not is_assigned:
        bench = None if is_timed_by_triton(autotuner) else own
    method = None if is_interpreted or bench is not None else options.get("method")
    is_graph = autotuner.use_cuda_graph and not is_assigned
    try:
        return method or method_name(bench, is_graph, is_interpreted), None
    except (TypeError, OSError) as error:
        name = f"custom:{type(bench).__qualname__} {PROCESS} {id(bench)}"
        return name, f"its benchmark function: {error}"


def _budget_of(configs: Sequence[Any], options: KernelOptions) -> TuningBudget:
    settings, most = current_settings(), options.get("tune_configs")
    return TuningBudget(
        searches=most is not None and isinstance(configs, ConfigSpace),
        seconds=options.get("tune_seconds") or settings.tune_seconds,
        configs=most or settings.tune_configs,
    )


def default_config(
    autotuner: Any,
    kernel: str,
    options: KernelOptions,
    kwargs: Mapping[str, Any],
    declared: DeclaredConfigs,
) -> Any:
    """Return the default config, or the first one left if it is left out or not declared.

    Args:
        autotuner: the kernel's, with the launch's positional arguments as `nargs`.
        kernel: the kernel's name.
        options: the kernel's options.
        kwargs: the launch's keyword arguments.
        declared: the configs that pruning leaves.

    Raises:
        ValueError: pruning leaves no config, for which Triton raises the same.
        SettingsError: the author's function returns no config.
    """
    if not declared:
        raise ValueError(f"{kernel}: pruning leaves no config for this launch")
    configs, default = autotuner.configs, options.get("default")
    if callable(default):
        named = {**autotuner.nargs, **kwargs}
        names = autotuner.arg_names
        default = default({name: value for name, value in named.items() if name in names})
    if isinstance(default, Mapping):
        values, default = default, config_with(default, configs)
        if default is None:
            warn_once(
                f"default {kernel}",
                f"{kernel}: no declared config has its default's values {dict(values)}: the "
                "first one is used instead",
            )
    if default is None:
        default = configs[0]
    elif not hasattr(default, "all_kwargs"):
        raise SettingsError(
            f"{kernel}: its function default returns {default!r}: return one of the declared "
            "triton.Configs, or None for the first"
        )
    name = describe(default)
    if name in declared:
        return declared[name]  # with the hook that the kernel declares
    first = next(iter(declared))
    if name not in map(describe, configs):
        warn_once(
            f"default {kernel}",
            f"{kernel}: its default ({name}) is not among the declared configs: ({first}) is used "
            "instead",
        )
    return declared[first]


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
