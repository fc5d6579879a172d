"""Triton's `Autotuner` over a store of records."""

from __future__ import annotations

import copy
import math
import time
import uuid
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from typing import Any

from ..errors import UnreadableKernelError
from ..model.buckets import Bucket, Exact
from ..model.resolution import Resolution
from ..model.scenario import Context, Kernel, Problem
from ..notices import warn_once
from ..policy import current_policy
from ..settings import Mode, current_settings
from ..stores import MemoryStore
from ..stores.default import as_tiers
from ..stores.tiered import TieredStore
from ..triton_internals.config_names import DeclaredConfigs, can_be_recorded, describe
from ..triton_internals.environment import (
    INTERPRETER_INDEX,
    current_device,
    current_environment,
    is_interpreting,
)
from ..triton_internals.identity import why_not_stored
from ..triton_internals.scenario_key import RawKey, ScenarioKey
from ..triton_internals.source_hash import kernel_name, source_hash
from ..triton_internals.upstream import Autotuner
from ..triton_internals.versions import is_covered
from ..tuning.benchmark_methods import METHODS, method_name, wall_clock
from ..tuning.config_space import ConfigSpace
from ..tuning.device_timer import DeviceTimer
from .activity_report import report_resolution, report_triton_activity
from .consensus import agree
from .hot_path import ChosenConfig, HotPath
from .launch_recorder import record_launches
from .options import (
    CacheOptions,
    check_key,
    check_method,
    check_options,
    check_policy_default,
    policy_buckets,
    validate_default,
    validate_options,
)
from .prewarmed_binaries import use_prewarmed_binaries
from .pruning import Pruning, can_prune
from .request import Request, TuningBudget
from .resolver import Resolver
from .triton_report import report_to_triton

__all__ = ["CachedAutotuner"]

RETRY_AFTER = 5.0
"""Seconds until a scenario that fell back is looked up again."""


class CachedAutotuner(Autotuner):  # type: ignore[misc]
    """Triton's `Autotuner` over a store, as `cached_autotune` returns it.

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
        check_key(self._name, key, arg_names, self._buckets)
        check_method(self._name, self._options, self._do_bench)
        keys = [name for name in key if name in arg_names]
        self._buckets = {**policy_buckets(self._name, self._policy, keys), **self._buckets}
        check_policy_default(self._name, self._policy, self.configs)
        self._scenario_key = ScenarioKey(arg_names, keys, self._buckets)
        default = self._options.get("default")
        if default is not None:
            validate_default(self._name, default, self.configs)
        self._default = self._policy.default_among(self.configs) if default is None else default
        self._interpreted = is_interpreting()
        self._device: Callable[[], int] = (
            (lambda: INTERPRETER_INDEX) if self._interpreted else current_device
        )
        self._ready: dict[RawKey, ChosenConfig] = {}
        self._fallen_back: dict[RawKey, ChosenConfig] = {}
        self._revisions: dict[RawKey, Hashable | None] = {}
        self._contexts: dict[int, Context] = {}
        use_prewarmed_binaries()
        report_triton_activity()
        record_launches(self)

    @cached_property
    def method(self) -> str:
        """Name of the benchmark method, which is part of a record's key."""
        # Triton turns its deprecated warmup and rep into a benchmark function of its own.
        is_callers = self.num_warmups is None and self.num_reps is None
        own_bench = self._do_bench if is_callers else None
        declared = None if self._interpreted else self._options.get("method")
        if declared:
            return declared
        try:
            return method_name(own_bench, self.use_cuda_graph, self._interpreted)
        except (UnreadableKernelError, OSError) as error:
            self._unnamed_method = str(error)
            return f"custom:{type(own_bench).__qualname__} {uuid.uuid4().hex}"

    @cached_property
    def do_bench(self) -> Callable[..., Any]:
        """Benchmark function: the caller's, or else a timer of the device or interpreter."""
        timed_by_triton = self.num_warmups is not None or self.num_reps is not None
        if self._interpreted and self._do_bench is None:
            return wall_clock
        if self.method in METHODS and not timed_by_triton:
            return DeviceTimer(self.method)
        bench: Callable[..., Any] = self._do_bench or super().do_bench
        return bench

    @cached_property
    def mode(self) -> Mode:
        """Mode by the decorator, or else by the policy, or else by `DEJAVU_CACHE_MODE`.

        A kernel with configs that records must not hold is left to Triton.
        """
        if not can_be_recorded(self._name, self.configs, self.arg_names):
            return Mode.OFF
        mode = self._options.get("mode") or self._policy.mode
        return current_settings().mode if mode is None else Mode(mode)

    @cached_property
    def _resolver(self) -> Resolver:
        settings = current_settings()
        limits = (
            self._options.get("max_distance"),
            self._policy.max_distance,
            settings.max_distance,
        )
        max_distance = next(limit for limit in limits if limit is not None)
        store = MemoryStore() if self._not_stored else self._options.get("store")
        return Resolver(as_tiers(store), self.mode, max_distance, settings)

    @cached_property
    def _not_stored(self) -> str | None:
        """Reason why this kernel's timings stay in this process, or None if they are stored."""
        reason = why_not_stored(self.fn, (config.kwargs for config in self.configs))
        if self.method and self._unnamed_method:
            reason = reason or f"its benchmark function: {self._unnamed_method}"
        if reason:
            warn_once(f"identity {self._name}", f"{self._name} is tuned but not stored: {reason}")
        return reason

    @property
    def home(self) -> TieredStore:
        """Store in which records are looked up and kept."""
        return self._resolver.store

    @cached_property
    def _prunes(self) -> bool:
        return can_prune(self)

    @cached_property
    def _pruning(self) -> Pruning | None:
        """Pruning that is asked per launch; None if a scenario's first launch answers for all."""
        per_launch = self._prunes and self._options.get("prune_per") != "scenario"
        return Pruning(self) if per_launch else None

    def __getitem__(self, grid: Any) -> Any:
        """Return the function that launches the kernel on a grid, as in `kernel[grid](…)`.

        Args:
            grid: one to three numbers of programs, or a function from the arguments to them.
        """
        if "run" in self.__dict__:  # a caller has wrapped this kernel's launches
            return super().__getitem__(grid)
        launch = self._launch
        return lambda *args, **kwargs: launch(grid, args, kwargs)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Launch the kernel with its scenario's config; `triton.heuristics` calls this method."""
        if "grid" not in kwargs or kwargs.get("warmup"):
            return (
                super().run(*args, **kwargs)
                if self.mode is Mode.OFF
                else self._run(args, kwargs)[0]
            )
        grid = kwargs.pop("grid")
        kwargs.pop("warmup", None)
        return self._launch(grid, args, kwargs)

    @cached_property
    def _launch(self) -> Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]:
        """Function that launches `(grid, args, kwargs)`, by the hot path where it applies."""
        if self.mode is Mode.OFF:
            theirs = super().run
            return lambda grid, args, kwargs: theirs(*args, grid=grid, warmup=False, **kwargs)
        if not self._interpreted and is_covered(self.fn):
            return HotPath(
                self,
                self._scenario_key.keys,
                self._buckets,
                self._run,
                exact=self._pruning is not None,
            ).launcher()
        return lambda grid, args, kwargs: self._run(
            args, {"grid": grid, "warmup": False, **kwargs}
        )[0]

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ChosenConfig]:
        """Launch through Triton; return its result and the config that was chosen."""
        if len(self.configs) < 2:
            chosen = ChosenConfig(self.configs[0], self.configs[0].all_kwargs())
        else:
            chosen = self._choose(args, kwargs)
        self.best_config = config = chosen.config
        if config.pre_hook is not None:
            config.pre_hook(
                {**dict(zip(self.arg_names, args, strict=False)), **kwargs, **chosen.options}
            )
        return self.fn.run(*args, **kwargs, **chosen.options), chosen

    def _choose(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ChosenConfig:
        device = self._device()
        try:
            raw, configs = self._raw_key(device, args, kwargs)
            return self._ready.get(raw) or self._resolve_first_launch(
                raw, device, args, kwargs, configs
            )
        except TypeError:
            # Raises an error that names the key argument, if one of them is at fault.
            self._scenario_key.scenario(self._arguments_by_name(args, kwargs))
            raise

    def _raw_key(
        self, device: int, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[RawKey, Sequence[Any] | None]:
        """Return a key of a launch's scenario and pruning, and the configs that pruning leaves."""
        raw = self._scenario_key.raw(device, args, kwargs)
        if self._pruning is None:
            return raw, None
        pruned = self._pruning.configs_for(device, args, kwargs)
        return (*raw, pruned.key), pruned.configs

    def explain(self, *args: Any, **kwargs: Any) -> Resolution:
        """Return how a launch with these arguments found its config, or would find it now.

        Nothing is launched, benchmarked or written.
        """
        device = self._device()
        raw, configs = self._raw_key(device, args, kwargs)
        ready = self._ready.get(raw)
        if ready and ready.resolution:
            return ready.resolution
        return self._resolver.explain(self._request(device, args, kwargs, configs))

    def request(self, *args: Any, **kwargs: Any) -> Request:
        """Return the request to the store that a launch with these arguments would make.

        Args:
            *args: the launch's positional arguments.
            **kwargs: its keyword arguments, `grid` and `warmup` included.
        """
        return self._request(self._device(), args, kwargs)

    def _resolve_first_launch(
        self,
        raw: RawKey,
        device: int,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        configs: Sequence[Any] | None = None,
    ) -> ChosenConfig:
        fallen_back = self._fallen_back.get(raw)
        if fallen_back and time.monotonic() < fallen_back.until:
            return fallen_back
        # Before the lookup: what is written while it reads is then noticed by the next launch.
        revision = self._resolver.revision(self._context(device))
        if fallen_back and revision is not None and revision == self._revisions.get(raw):
            kept = fallen_back._replace(until=time.monotonic() + RETRY_AFTER)
            self._fallen_back[raw] = kept
            return kept
        request = self._request(device, args, kwargs, configs)
        start = time.perf_counter()
        # A launch waits for another process's tune once; after that it only looks the record up.
        resolution, benchmarked = self._resolve(
            request, 0.0 if fallen_back else current_settings().tune_wait
        )
        if benchmarked:
            self.benchmarked += benchmarked
            self.bench_time = time.perf_counter() - start
            self.pre_hook(
                {**request.autotuner.nargs, **kwargs, **resolution.config.all_kwargs()},
                reset_only=True,
            )
        report_to_triton(self, request, resolution, benchmarked)
        report_resolution(self._name, request.scenario, resolution, benchmarked)
        until = math.inf if resolution.final else time.monotonic() + RETRY_AFTER
        ready = ChosenConfig(resolution.config, resolution.config.all_kwargs(), until, resolution)
        if resolution.final:
            self._fallen_back.pop(raw, None)
            self._ready[raw] = ready
        else:
            self._revisions[raw] = revision
            self._fallen_back[raw] = ready
        return ready

    def _resolve(self, request: Request, wait: float) -> tuple[Resolution, int]:
        if request.has_no_choice:
            return self._resolver.only_config(request), 0
        if self._consensus == "none":
            return self._resolver.resolve(request, wait=wait)
        resolver = self._resolver

        def now() -> Resolution:
            tuning = self.mode is Mode.TUNE
            return resolver.explain(request) if tuning else resolver.resolve(request, wait=0.0)[0]

        return agree(request, lambda: resolver.resolve(request, wait=wait), now, wait)

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
        """Source hash of the kernel and its heuristics; a unique one if nothing is stored."""
        return uuid.uuid4().hex if self._not_stored else source_hash(self.fn)

    def _context(self, device: int) -> Context:
        environment = current_environment(device)
        context = self._contexts.get(device)
        if context is None or context.environment != environment:
            buckets = {
                name: bucket
                for name, bucket in self._buckets.items()
                if not isinstance(bucket, Exact)
            }
            self._contexts[device] = context = Context(
                kernel=Kernel(name=self._name, source=self.source),
                environment=environment,
                problem=Problem(keys=self._scenario_key.keys, buckets=buckets, method=self.method),
            )
        return context

    def _request(
        self,
        device: int,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        configs: Sequence[Any] | None = None,
    ) -> Request:
        """Return the request of a launch; `configs` are what pruning leaves, if it was asked."""
        # Triton keeps a launch's arguments on the autotuner, so each request has its own copy.
        autotuner = copy.copy(self)
        autotuner.nargs = dict(zip(self.arg_names, args, strict=False))
        named = self._arguments_by_name(args, kwargs)
        if configs is None:
            configs = autotuner.prune_configs(dict(kwargs))
        declared = DeclaredConfigs(self._name, configs)
        return Request(
            autotuner=autotuner,
            context=self._context(device),
            scenario=self._scenario_key.scenario(named),
            declared=declared,
            default=self._default_config(named, declared),
            exact=frozenset(
                name for name, bucket in self._buckets.items() if isinstance(bucket, Exact)
            ),
            args=args,
            kwargs=dict(kwargs),
            budget=self._budget,
            check=check_options(self._options),
            prunes=self._prunes,
            not_stored=self._not_stored,
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

    def _default_config(self, named: Mapping[str, Any], declared: DeclaredConfigs) -> Any:
        """Return the default config, or the first one left if pruning leaves the default out."""
        default = self._default(named) if callable(self._default) else self._default
        if default is None:
            default = self.configs[0]
        if self._prunes and describe(default) not in declared:
            return declared[next(iter(declared))]
        return default
