"""Options and identity of a cached autotuner, as its decorator declares them, and its requests."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from ..errors import SettingsError
from ..model.buckets import Bucket, Exact
from ..model.resolution import Resolution
from ..model.scenario import Context, Kernel, Problem, Scenario
from ..policy import config_with, current_policy
from ..settings import Mode, current_settings
from ..system.fork_lock import cached_property
from ..system.notices import warn_once
from ..triton_internals.cache_managers import launch_key
from ..triton_internals.compilation import note_settings
from ..triton_internals.config_names import DeclaredConfigs, can_be_recorded, describe
from ..triton_internals.environment import (
    INTERPRETER_INDEX,
    current_device,
    current_environment,
    is_interpreting,
    unreadable_settings,
)
from ..triton_internals.identity import KernelIdentity, find_jit_function, identify, kernel_name
from ..triton_internals.scenario_key import ScenarioKey
from ..tuning.benchmark_methods import KERNEL_ALONE, METHODS, method_name, name_for, wall_clock
from ..tuning.device_timer import DeviceTimer
from ..tuning.search import ConfigSpace
from .changing_autotuner import ChangingAutotuner
from .options import (
    CacheOptions,
    check_compared_arguments,
    check_key,
    check_method,
    check_options,
    check_policy_default,
    no_configs,
    policy_buckets,
    validate_default,
    validate_options,
)
from .pruning import Pruning, can_prune
from .request import Request, TuningBudget

__all__ = ["DeclaredAutotuner"]


class DeclaredAutotuner(ChangingAutotuner):
    """Triton's `Autotuner` with the options of `cached_autotune`, and an identity in stores.

    Attributes:
        benchmarked: the number of configs that this object has benchmarked.
    """

    def __init__(
        self,
        fn: Any,
        arg_names: Sequence[str],
        configs: Sequence[Any],
        key: Sequence[str],
        *args: Any,
        options: CacheOptions | None = None,
        **kwargs: Any,
    ) -> None:
        """Decorate a kernel; `cached_autotune` describes the options.

        Args:
            fn: a `triton.jit` function, or heuristics around one.
            arg_names: the kernel's parameters.
            configs: the configs to choose from.
            key: the names of the key arguments.
            *args: as for Triton's `Autotuner`.
            options: what `cached_autotune` adds to Triton's.
            **kwargs: as for Triton's `Autotuner`.

        Raises:
            SettingsError: an option does not exist or has a value that it cannot have.
        """
        super().__init__(fn, arg_names, configs, key, *args, **kwargs)
        self.benchmarked = 0
        self._unnamed_method: str | None = None
        self._name = kernel_name(fn)
        self._options = validate_options(self._name, options or {})
        self._policy = current_policy().rule_for(self._name)
        self._buckets: dict[str, Bucket] = dict(self._options.get("buckets") or {})  # type: ignore[arg-type]
        if not configs:  # `cached_autotune` refuses them, and Triton has a config of its own
            warn_once(f"configs {self._name}", f"{self._name}: {no_configs(configs)}")
        check_key(self._name, key, arg_names, self._buckets)
        check_method(self._name, self._options, self._do_bench)
        check_compared_arguments(self._name, self._options, arg_names)
        keys = [name for name in key if name in arg_names]
        self._buckets = {**policy_buckets(self._name, self._policy, keys), **self._buckets}
        check_policy_default(self._name, self._policy, self.configs)
        default = self._options.get("default")
        if default is not None:
            validate_default(self._name, default, self.configs)
        if isinstance(default, Mapping) and not isinstance(self.configs, ConfigSpace):
            default = config_with(default, self.configs)
        self._default = self._policy.default_among(self.configs) if default is None else default
        self._interpreted = is_interpreting()
        self._device: Callable[[], int] = (
            (lambda: INTERPRETER_INDEX) if self._interpreted else current_device
        )

    @cached_property
    def method(self) -> str:
        """Name of the benchmark method, which is part of a record's key."""
        assigned = self._assigned_bench
        own_bench = None if self._is_timed_by_triton else self._do_bench
        if assigned is not None:
            own_bench = assigned
        declared = None if self._interpreted or own_bench else self._options.get("method")
        try:
            is_graph = self.use_cuda_graph and assigned is None
            method = declared or method_name(own_bench, is_graph, self._interpreted)
            return method if self._is_timed_by_triton else name_for(self, method)
        except (TypeError, OSError) as error:
            self._unnamed_method = str(error)
            return f"custom:{type(own_bench).__qualname__} {uuid.uuid4().hex}"

    @property
    def _assigned_bench(self) -> Any:
        """The benchmark function that the program has assigned to `do_bench`, or None."""
        # Ours is derived from the method, but for the interpreter's: any other was assigned.
        bench = self.__dict__.get("do_bench", wall_clock)
        return None if bench is wall_clock else bench

    @property
    def _is_timed_by_triton(self) -> bool:
        """Whether Triton has made a benchmark function of its deprecated `warmup` and `rep`."""
        return self.num_warmups is not None or self.num_reps is not None

    @cached_property
    def do_bench(self) -> Callable[..., Any]:
        """Benchmark function: the caller's, or else a timer of the device or interpreter."""
        if self._interpreted and self._do_bench is None:
            return wall_clock
        method = self.method.removesuffix(KERNEL_ALONE)
        if method in METHODS and not self._is_timed_by_triton:
            return DeviceTimer(method)
        bench: Callable[..., Any] = self._do_bench or super().do_bench
        return bench

    def _forget_declaration(self) -> None:
        super()._forget_declaration()
        self._contexts: dict[int, Context] = {}

    @cached_property
    def _scenario_key(self) -> ScenarioKey:
        keys = [name for name in self.keys if name in self.arg_names and not self._why_unnamed]
        return ScenarioKey(self.fn, keys, self._buckets, self.configs)

    def __copy__(self) -> Any:
        """Return an autotuner that shares all but what only one object can own."""
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin.__dict__.pop("_launch_pruning", None)
        return twin

    @cached_property
    def mode(self) -> Mode:
        """Mode by the decorator, or else by the policy, or else by `DEJAVU_CACHE_MODE`.

        A kernel with configs that records must not hold is left to Triton.
        """
        if self._why_unnamed:
            warn_once(f"name {self._name}", f"{self._name}: {self._why_unnamed}")
            return Mode.OFF
        if not can_be_recorded(self._name, self.configs, self.arg_names):
            return Mode.OFF
        mode = self._options.get("mode") or self._policy.mode
        return current_settings().mode if mode is None else Mode(mode)

    @cached_property
    def _why_unnamed(self) -> str | None:
        """Why no record can name the kernel's arguments, any of which may be a tensor, or None."""
        try:
            Scenario(dtypes=dict.fromkeys(self.arg_names, "float32"))
        except ValidationError as error:
            reasons = "; ".join(problem["msg"] for problem in error.errors())
            return (
                f"no record can hold the names of its arguments: {reasons}: "
                "it is tuned by Triton, and nothing is recorded"
            )
        return None

    @cached_property
    def _key(self) -> KernelIdentity:
        """The identity by Triton's key; `_identity` may know better what was generated."""
        return self._identify()

    @cached_property
    def _identity(self) -> KernelIdentity:
        return self._key

    def _identify(self) -> KernelIdentity:
        return identify(self.fn, (config.kwargs for config in self.configs))

    def _notice_changed_code(self) -> bool:
        """Take another identity if Triton's key of the kernel has changed since it was last read.

        Returns:
            Whether it has, so that each launch's config is chosen anew.
        """
        before, now = self._key, self._identify()
        if now == before:
            return False
        if before.unstored or now.unstored:  # which decides about the store
            self._forget_declaration()
        self._take_identity(now)
        self._key = now
        return True

    def take_other_code(self, code: str) -> None:
        """Take the identity of a kernel whose generated code is not what its key stands for.

        Args:
            code: what Triton generated, as `generated_code` has it.
        """
        self._take_identity(self._key.with_code(code))

    def _take_identity(self, identity: KernelIdentity) -> None:
        # In this order: what another thread derives meanwhile, it derives from the new identity.
        self._identity = identity
        self.__dict__.pop("source", None)
        self._contexts = {}
        self.forget_choices()

    @cached_property
    def _not_stored(self) -> str | None:
        """Reason why this kernel's timings stay in this process, or None if they are stored."""
        reason = self._identity.unstored
        if self.method and self._unnamed_method:
            reason = reason or f"its benchmark function: {self._unnamed_method}"
        if reason:
            self._say_unstored(reason)
        return reason

    def _say_unstored(self, reason: str) -> None:
        warn_once(f"identity {self._name}", f"{self._name} is tuned but not stored: {reason}")

    @property
    def buckets(self) -> Mapping[str, Bucket]:
        """The buckets of some of the key arguments."""
        return self._buckets

    @cached_property
    def prunes(self) -> bool:
        """Whether pruning may leave out a config of some launch."""
        return can_prune(self)

    @cached_property
    def _launch_pruning(self) -> Pruning | None:
        """Pruning that may differ within a bucket; None if a key's first launch answers for all."""
        per_launch = self._has_buckets and self._options.get("prune_per") != "scenario"
        return Pruning(self) if self.prunes and per_launch else None

    @cached_property
    def _has_buckets(self) -> bool:
        return any(not isinstance(bucket, Exact) for bucket in self._buckets.values())

    @cached_property
    def _consensus(self) -> str:
        if self._not_stored:  # nothing tells whether the other ranks' kernel is this one
            return "none"
        return self._options.get("consensus") or current_settings().consensus

    def _arguments_by_name(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        arguments = {**dict(zip(self.arg_names, args, strict=False)), **kwargs}
        return {name: value for name, value in arguments.items() if name in self.arg_names}

    @cached_property
    def source(self) -> str:
        """Key of the kernel's code; a unique one if nothing is stored."""
        source = self._identity.source
        return uuid.uuid4().hex if self._not_stored or source is None else source

    @property
    def context(self) -> Context:
        """Context of the kernel's records on the current device."""
        return self._context(self._device())

    def _context(self, device: int) -> Context:
        environment = current_environment(device)
        if (function := find_jit_function(self)) is not None:
            note_settings(function, environment.variables)
        contexts = self._contexts  # before the source: another thread may forget both meanwhile
        context = contexts.get(device)
        if context is None or context.environment != environment:
            buckets = {
                name: bucket
                for name, bucket in self._buckets.items()
                if name in self._scenario_key.keys and not isinstance(bucket, Exact)
            }
            contexts[device] = context = Context(
                kernel=Kernel(name=self._name, source=self.source),
                environment=environment,
                problem=Problem(keys=self._scenario_key.keys, buckets=buckets, method=self.method),
            )
        return context

    def _explain_off(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Resolution:
        """Return what Triton's own autotuner runs; without a config until it has benchmarked."""
        key = launch_key(self, args, kwargs)
        only = self.configs[0] if len(self.configs) == 1 else None
        return Resolution(
            "off",
            self.cache[key] if key in self.cache else only,  # noqa: SIM401 - it may have no `get`
            Scenario() if self._why_unnamed else self._scenario_key.scenario(args, kwargs),
            self._context(self._device()),
            not_stored=self._why_unnamed,
        )

    def _request(
        self,
        device: int,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        configs: Sequence[Any] | None = None,
        context: Context | None = None,
    ) -> Request:
        """Return the request of a launch.

        Args:
            device: the device's index.
            args: the launch's positional arguments.
            kwargs: its keyword arguments.
            configs: what pruning leaves, if it was asked.
            context: the context of the kernel's records there, if it was made.
        """
        # Triton keeps a launch's arguments on the autotuner, so each request has its own copy.
        autotuner = copy.copy(self)
        autotuner.nargs = dict(zip(self.arg_names, args, strict=False))
        named = self._arguments_by_name(args, kwargs)
        if configs is None:
            configs = autotuner.prune_configs(dict(kwargs))
        declared = DeclaredConfigs(self._name, configs)
        scenario, unstored = self._scenario_key.launch_scenario(args, kwargs, device)
        context = context or self._context(device)
        if settings := unreadable_settings(context.environment.variables):
            unstored = f"{', '.join(settings)} has no text that stands for it"
        if unstored and not self._not_stored:
            self._say_unstored(unstored)
        return Request(
            autotuner=autotuner,
            context=context,
            scenario=scenario,
            declared=declared,
            default=self._default_config(named, declared),
            exact=frozenset(
                name for name, bucket in self._buckets.items() if isinstance(bucket, Exact)
            ),
            args=args,
            kwargs=dict(kwargs),
            budget=self._budget,
            check=check_options(self._options),
            prunes=self.prunes,
            not_stored=self._not_stored or unstored,
        )

    @cached_property
    def _budget(self) -> TuningBudget:
        settings, options, rule = current_settings(), self._options, self._policy
        space = self.configs if isinstance(self.configs, ConfigSpace) else None
        seconds = options.get("tune_seconds") or rule.tune_seconds or settings.tune_seconds
        declared = options.get("tune_configs") or rule.tune_configs
        budget = space.budget if space else None
        return TuningBudget(
            strategy=space.search if space else "exhaustive",
            seconds=seconds,
            configs=declared or budget or settings.tune_configs,
        )

    def _pruned_default(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the default config of a launch, without a request to a store."""
        autotuner = copy.copy(self)
        autotuner.nargs = dict(zip(self.arg_names, args, strict=False))
        configs = autotuner.prune_configs(dict(kwargs))
        named = self._arguments_by_name(args, kwargs)
        return self._default_config(named, DeclaredConfigs(self._name, configs))

    def _default_config(self, named: Mapping[str, Any], declared: DeclaredConfigs) -> Any:
        """Return the default config, or the first one left if it is left out or not declared.

        Raises:
            ValueError: pruning leaves no config, for which Triton raises the same.
            SettingsError: the author's function returns no config.
        """
        if not declared:
            raise ValueError(f"{self._name}: pruning leaves no config for this launch")
        default = self._default(named) if callable(self._default) else self._default
        if isinstance(default, Mapping):
            default = self._config_with(default)
        if default is None:
            default = self.configs[0]
        elif not hasattr(default, "all_kwargs"):
            raise SettingsError(
                f"{self._name}: its function default returns {default!r}: return one of the "
                "declared triton.Configs, or None for the first"
            )
        name = describe(default)
        if name in declared:
            return declared[name]  # with the hook that the kernel declares
        first = next(iter(declared))
        if name not in map(describe, self.configs):
            warn_once(
                f"default {self._name}",
                f"{self._name}: its default ({name}) is not among the declared configs: "
                f"({first}) is used instead",
            )
        return declared[first]

    def _config_with(self, values: Mapping[str, Any]) -> Any | None:
        """Return the first declared config with a default's values; warn if this GPU has none."""
        config = config_with(values, self.configs)
        if config is None:
            warn_once(
                f"default {self._name}",
                f"{self._name}: no declared config has its default's values {dict(values)}: the "
                "first one is used instead",
            )
        return config
