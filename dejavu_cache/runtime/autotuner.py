"""`@cached_autotune`: `triton.autotune` with a memory."""

from __future__ import annotations

import copy
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from ..errors import SettingsError
from ..model.buckets import Bucket, Exact
from ..model.resolution import Resolution
from ..model.scenario import Context, Kernel, Problem
from ..notices import warn_once
from ..policy import Rule, current_policy
from ..settings import Mode, current_settings
from ..stores import Store
from ..stores.default import as_tiers
from ..stores.tiered import TieredStore
from ..triton_internals.config_names import DeclaredConfigs
from ..triton_internals.environment import (
    INTERPRETER_INDEX,
    current_device,
    current_environment,
    is_interpreting,
)
from ..triton_internals.scenario_key import RawKey, ScenarioKey
from ..triton_internals.source_hash import kernel_name, source_hash
from ..triton_internals.upstream import Autotuner, knobs
from ..triton_internals.versions import autotuning_listener, is_covered
from ..tuning.benchmark_methods import METHODS, method_name, wall_clock
from ..tuning.config_space import ConfigSpace
from ..tuning.device_timer import DeviceTimer
from .activity_report import report_resolution, report_triton_activity
from .consensus import agree
from .hot_path import ChosenConfig, HotPath
from .launch_recorder import record_launches
from .prewarmed_binaries import use_prewarmed_binaries
from .request import Request, TuningBudget
from .resolver import Resolver

__all__ = ["CachedAutotuner", "cached_autotune"]

RETRY_AFTER = 5.0
"""Seconds until a scenario that fell back is looked up again."""


class CachedAutotuner(Autotuner):  # type: ignore[misc]
    """Triton's `Autotuner` over a store: made by `cached_autotune`.

    Attributes:
        benchmarked: how many configs this object has benchmarked.
    """

    def __init__(
        self,
        fn: Any,
        arg_names: Sequence[str],
        configs: Sequence[Any],
        key: Sequence[str],
        *args: Any,
        buckets: Mapping[str, Bucket] | None = None,
        store: Store | str | os.PathLike[str] | None = None,
        mode: Mode | str | None = None,
        default: Any = None,
        max_distance: float | None = None,
        method: str | None = None,
        tune_seconds: float | None = None,
        tune_configs: int | None = None,
        consensus: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(fn, arg_names, configs, key, *args, **kwargs)
        self.benchmarked = 0
        self._name = kernel_name(fn)
        self._buckets = dict(buckets or {})
        self._check_names(key)
        rule = current_policy().rule_for(self._name)
        self._follow(rule, key)
        self._scenario_key = ScenarioKey(
            arg_names, [name for name in key if name in arg_names], self._buckets
        )
        self._store = store
        self._mode = rule.mode if mode is None else _mode(mode)
        self._default = rule.default_among(self.configs) if default is None else default
        self._max_distance = rule.max_distance if max_distance is None else max_distance
        self._declared_method = self._checked(method)
        if consensus not in (None, "none", "ranks"):
            raise SettingsError(f"{self._name}: consensus={consensus!r}: choose none or ranks")
        self._declared_consensus = consensus
        self._limits = tune_seconds or rule.tune_seconds, tune_configs or rule.tune_configs
        self._interpreted = is_interpreting()
        self._device: Callable[[], int] = (
            (lambda: INTERPRETER_INDEX) if self._interpreted else current_device
        )
        self._ready: dict[RawKey, ChosenConfig] = {}
        self._fallen_back: dict[RawKey, ChosenConfig] = {}
        self._contexts: dict[int, Context] = {}
        use_prewarmed_binaries()
        report_triton_activity()
        record_launches(self)

    def _check_names(self, key: Sequence[str]) -> None:
        for name in self._buckets:
            if name not in key:
                raise SettingsError(
                    f"{self._name}: buckets name {name!r}, which is not in key; key holds {', '.join(key) or 'nothing'}"
                )
        unknown = [name for name in key if name not in self.arg_names]
        if unknown:  # Triton 3.9 refuses them; older ones ignore them, and so must we
            warn_once(
                f"key {self._name}",
                f"{self._name}: key names {unknown}, which are no arguments: they are ignored",
            )

    def _follow(self, rule: Rule, key: Sequence[str]) -> None:
        """Takes the policy's buckets, where the decorator has none, and says what of the policy does not fit."""
        for name, bucket in rule.buckets.items():
            if name in key and name in self.arg_names:
                self._buckets.setdefault(name, bucket)
            else:
                about = f"policy {rule.match} {self._name} {name}"
                warn_once(
                    about,
                    f"{self._name}: the policy has a bucket for {name!r}, which is not in key: no effect",
                )
        if rule.default and rule.default_among(self.configs) is None:
            about = f"policy {rule.match} {self._name} default"
            warn_once(
                about,
                f"{self._name}: no declared config is the policy's default {rule.default}: no effect",
            )

    def _checked(self, method: str | None) -> str | None:
        if method is not None and method not in METHODS:
            raise SettingsError(
                f"{self._name}: method={method!r}: choose one of {', '.join(METHODS)}"
            )
        if method is not None and self._do_bench is not None:
            raise SettingsError(f"{self._name}: give a method or a benchmark of your own, not both")
        return method

    @cached_property
    def method(self) -> str:
        """The benchmark method's name."""
        # The deprecated warmup and rep arrive as a function too, but one of Triton's own.
        theirs = self._do_bench if self.num_warmups is None and self.num_reps is None else None
        declared = None if self._interpreted else self._declared_method
        return declared or method_name(theirs, self.use_cuda_graph, self._interpreted)

    @cached_property
    def do_bench(self) -> Any:
        """The benchmark: the caller's, else the host's clock under the interpreter, else the device's."""
        timed_by_triton = self.num_warmups is not None or self.num_reps is not None
        if self._interpreted and self._do_bench is None:
            return wall_clock
        if self.method in METHODS and not timed_by_triton:
            return DeviceTimer(self.method)
        return self._do_bench or super().do_bench

    @cached_property
    def mode(self) -> Mode:
        """What a launch may do about a miss: the decorator's word, the policy's, or `DEJAVU_CACHE_MODE`."""
        return self._mode or current_settings().mode

    @cached_property
    def _resolver(self) -> Resolver:
        settings = current_settings()
        limit = settings.max_distance if self._max_distance is None else self._max_distance
        return Resolver(as_tiers(self._store), self.mode, limit, settings)

    @property
    def home(self) -> TieredStore:
        """Where records are looked for and kept."""
        return self._resolver.store

    def __getitem__(self, grid: Any) -> Any:
        """What launches the kernel on a grid, a tuple or a function of the arguments: `kernel[grid](…)`."""
        if "run" in self.__dict__:  # somebody put a wrapper around this kernel's launches
            return super().__getitem__(grid)
        launch = self._launch
        return lambda *args, **kwargs: launch(grid, args, kwargs)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Launches the kernel with its scenario's config; `triton.heuristics` around it come here."""
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
        """The way from `(grid, args, kwargs)` to the device: the hot path where it may be taken."""
        if self.mode is Mode.OFF:
            theirs = super().run
            return lambda grid, args, kwargs: theirs(*args, grid=grid, warmup=False, **kwargs)
        if not self._interpreted and is_covered(self.fn):
            return HotPath(self, self._scenario_key.keys, self._buckets, self._run).launcher()
        return lambda grid, args, kwargs: self._run(
            args, {"grid": grid, "warmup": False, **kwargs}
        )[0]

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ChosenConfig]:
        """A launch as Triton makes it: what it returned, and the config that was chosen for it."""
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
            raw = self._scenario_key.raw(device, args, kwargs)
            return self._ready.get(raw) or self._first_sight(raw, device, args, kwargs)
        except TypeError:
            self._scenario_key.scenario(
                self._named(args, kwargs)
            )  # says which key argument is to blame, if one is
            raise

    def explain(self, *args: Any, **kwargs: Any) -> Resolution:
        """How launches with these arguments found their config, or would find it now.

        Nothing is run, benchmarked or written.
        """
        device = self._device()
        ready = self._ready.get(self._scenario_key.raw(device, args, kwargs))
        return (
            ready.resolution
            if ready and ready.resolution
            else self._resolver.explain(self._request(device, args, kwargs))
        )

    def request(self, *args: Any, **kwargs: Any) -> Request:
        """What a launch with these arguments would ask the store for; the launch's `grid` and `warmup` included."""
        return self._request(self._device(), args, kwargs)

    def _first_sight(
        self, raw: RawKey, device: int, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> ChosenConfig:
        fallen_back = self._fallen_back.get(raw)
        if fallen_back and time.monotonic() < fallen_back.until:
            return fallen_back
        request = self._request(device, args, kwargs)
        start = time.perf_counter()
        # Whoever waited once for another's tuning does not wait again: it looks whether the record is there.
        resolution, benchmarked = self._resolved(
            request, 0.0 if fallen_back else current_settings().tune_wait
        )
        if benchmarked:
            self.benchmarked += benchmarked
            self.bench_time = time.perf_counter() - start
            self.pre_hook(
                {**request.autotuner.nargs, **kwargs, **resolution.config.all_kwargs()},
                reset_only=True,
            )
        self._report(request, resolution, benchmarked)
        until = math.inf if resolution.final else time.monotonic() + RETRY_AFTER
        ready = ChosenConfig(resolution.config, resolution.config.all_kwargs(), until, resolution)
        if resolution.final:
            self._fallen_back.pop(raw, None)
            self._ready[raw] = ready
        else:
            self._fallen_back[raw] = ready
        return ready

    def _resolved(self, request: Request, wait: float) -> tuple[Resolution, int]:
        if self._consensus == "none":
            return self._resolver.resolve(request, wait=wait)
        resolver = self._resolver

        def now() -> Resolution:
            tuning = self.mode is Mode.TUNE
            return resolver.explain(request) if tuning else resolver.resolve(request, wait=0.0)[0]

        return agree(request, lambda: resolver.resolve(request, wait=wait), now, wait)

    @cached_property
    def _consensus(self) -> str:
        return self._declared_consensus or current_settings().consensus

    def _report(self, request: Request, resolution: Resolution, benchmarked: int) -> None:
        """Tells everyone whom Triton's autotuner would tell: `cache`, the printed line, the listener."""
        key = (*request.scenario.args.values(), *request.scenario.dtypes.values())
        self.cache[key] = resolution.config
        report_resolution(self._name, request.scenario, resolution, benchmarked)
        if knobs.autotuning.print and benchmarked:
            print(
                f"Triton autotuning for function {self.base_fn.__name__},\nwith key as {key},\n"
                f"finished after {self.bench_time:.2f}s,\nbest config selected: {resolution.config};"
            )
        listener = autotuning_listener()
        if listener is not None:
            listener(
                fn=self.base_fn,
                key=key,
                best_config=resolution.config,
                configs_timings=getattr(self, "configs_timings", {}),
                duration=self.bench_time if benchmarked else None,
                cache_hit=not benchmarked,
            )

    def _named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        given = {**dict(zip(self.arg_names, args, strict=False)), **kwargs}
        return {name: value for name, value in given.items() if name in self.arg_names}

    def _context(self, device: int) -> Context:
        context = self._contexts.get(device)
        if context is None:
            buckets = {
                name: bucket
                for name, bucket in self._buckets.items()
                if not isinstance(bucket, Exact)
            }
            self._contexts[device] = context = Context(
                kernel=Kernel(name=self._name, source=source_hash(self.fn)),
                environment=current_environment(device),
                problem=Problem(keys=self._scenario_key.keys, buckets=buckets, method=self.method),
            )
        return context

    def _request(self, device: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Request:
        # Triton keeps a launch's arguments on the autotuner; a copy keeps two threads' apart.
        mine = copy.copy(self)
        mine.nargs = dict(zip(self.arg_names, args, strict=False))
        named = self._named(args, kwargs)
        pruned = mine.prune_configs(dict(kwargs))
        return Request(
            autotuner=mine,
            context=self._context(device),
            scenario=self._scenario_key.scenario(named),
            declared=DeclaredConfigs(self._name, pruned),
            default=self._default_config(named, pruned),
            exact=frozenset(
                name for name, bucket in self._buckets.items() if isinstance(bucket, Exact)
            ),
            args=args,
            kwargs=dict(kwargs),
            budget=self._budget,
        )

    @cached_property
    def _budget(self) -> TuningBudget:
        settings = current_settings()
        seconds, configs = self._limits
        space = self.configs if isinstance(self.configs, ConfigSpace) else None
        return TuningBudget(
            strategy=space.search if space else "exhaustive",
            seconds=seconds or settings.tune_seconds,
            configs=configs or (space and space.budget) or settings.tune_configs,
        )

    def _default_config(self, named: Mapping[str, Any], pruned: Sequence[Any]) -> Any:
        if self._default is not None:
            return self._default(named) if callable(self._default) else self._default
        return self.configs[0] if self.configs[0] in pruned else pruned[0]


def cached_autotune(
    configs: Sequence[Any],
    key: Sequence[str],
    prune_configs_by: dict[str, Any] | None = None,
    reset_to_zero: Sequence[str] | None = None,
    restore_value: Sequence[str] | None = None,
    pre_hook: Callable[..., Any] | None = None,
    post_hook: Callable[..., Any] | None = None,
    warmup: int | None = None,
    rep: int | None = None,
    use_cuda_graph: bool = False,
    do_bench: Callable[..., Any] | None = None,
    cache_results: bool = False,
    *,
    buckets: Mapping[str, Bucket] | None = None,
    store: Store | str | os.PathLike[str] | None = None,
    mode: Mode | str | None = None,
    default: Any = None,
    max_distance: float | None = None,
    method: str | None = None,
    tune_seconds: float | None = None,
    tune_configs: int | None = None,
    consensus: str | None = None,
    made: type[CachedAutotuner] = CachedAutotuner,
) -> Callable[[Any], CachedAutotuner]:
    """Decorates a `triton.jit` function so that a scenario is tuned once and its record reused ever after.

    The arguments before the star are those of `triton.autotune`, with its meaning; `cache_results` has
    none here, since results are always kept.

    Args:
        buckets: for some of the key arguments, the rule that maps a value to its bucket.
        store: where records are kept: a `Store`, a URL or a folder; else what `DEJAVU_CACHE_URL` says.
        mode: `tune`, `reuse`, `strict` or `off`; else what `DEJAVU_CACHE_MODE` says.
        default: the `triton.Config` that a miss falls back on, or a function from the named arguments to
            one; else the first config.
        max_distance: how far, in powers of two summed over the key arguments, the scenario may be whose
            winner stands in for one that is not tuned.
        consensus: `ranks` makes all ranks of a torch.distributed job run one rank's decision; else what
            `DEJAVU_CACHE_CONSENSUS` says.
        made: the class of what is returned.

    Raises:
        SettingsError: a bucket names no key argument, or the mode or method does not exist.

    Example:
        >>> @cached_autotune(configs=[...], key=["M", "N"], buckets={"M": Pow2(max=4096)})  # doctest: +SKIP
        ... @triton.jit
        ... def kernel(x_ptr, M, N, BLOCK: tl.constexpr): ...
    """

    def decorate(fn: Any) -> CachedAutotuner:
        return made(
            fn,
            fn.arg_names,
            configs,
            key,
            reset_to_zero,
            restore_value,
            pre_hook=pre_hook,
            post_hook=post_hook,
            prune_configs_by=prune_configs_by,
            warmup=warmup,
            rep=rep,
            use_cuda_graph=use_cuda_graph,
            do_bench=do_bench,
            buckets=buckets,
            store=store,
            mode=mode,
            default=default,
            max_distance=max_distance,
            method=method,
            tune_seconds=tune_seconds,
            tune_configs=tune_configs,
            consensus=consensus,
        )

    return decorate


def _mode(mode: Mode | str) -> Mode:
    try:
        return Mode(mode.lower() if isinstance(mode, str) else mode)
    except ValueError:
        raise SettingsError(
            f"mode={mode!r}: choose one of {', '.join(each.value for each in Mode)}"
        ) from None
