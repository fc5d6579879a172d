"""`@cached_autotune`: `triton.autotune` with a memory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ..errors import DejavuError, ScenarioNotTuned, drop_own_frames
from ..model.buckets import Bucket
from ..model.resolution import Resolution
from ..model.scenario import Context, Scenario
from ..settings import Mode, current_settings
from ..stores import MemoryStore, TieredStore
from ..stores.urls import as_tiers
from ..system.background_threads import is_from_signal_handler
from ..system.import_hooks import after_import
from ..system.notices import show_log, warn_once
from ..triton_internals.config_names import can_be_recorded
from ..triton_internals.environment import (
    INTERPRETER_INDEX,
    begin_digest,
    current_device,
    is_interpreting,
    toolchain_on,
)
from ..triton_internals.hooks import foreign_run
from ..triton_internals.identity import identify, kernel_name
from ..triton_internals.versions import Autotuner, is_covered
from ..tuning.benchmark_methods import KERNEL_ALONE, METHODS, wall_clock
from ..tuning.device_timer import DeviceTimer
from .choices import Choices, ConfigCache
from .declaration import (
    Declaration,
    Pruning,
    benchmark_method,
    is_timed_by_triton,
    why_unnamed,
)
from .events import report_triton_activity
from .hot_path import HotPath
from .launch import Launch
from .launch_recorder import record_launches
from .options import CacheOptions, DefaultConfig, check_declaration, declared_options, no_configs
from .prewarmed_binaries import use_prewarmed_binaries
from .request import Request
from .resolver import Resolver

if TYPE_CHECKING:
    from triton import Config as TritonConfig
    from typing_extensions import Unpack

__all__ = ["CachedAutotuner", "cached_autotune", "leave_untraced"]

_DERIVED = ("_declaration", "mode", "_is_left_to_triton", "_pruning", "_hot_path", "_launch")
"""What is derived from the attributes that a program may assign, in the order of derivation."""

_OWNED = ("_pruning", "_hot_path", "_launch")
"""What holds the object itself, so that a copy needs its own."""

_COPIED = ("arg_names", "configs", "fn", "keys", "reset_to_zero", "restore_value", "best_config")
"""What a deep copy has copies of."""


def cached_autotune(
    configs: Sequence[TritonConfig],
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
    **options: Unpack[CacheOptions],
) -> Callable[[Any], CachedAutotuner]:
    """Decorate a `triton.jit` function so that each scenario is tuned once and its record reused.

    The parameters up to `cache_results` are those of `triton.autotune`, in its order. An option
    that is not given, or None, comes from the policy file, or else from the environment, as `mode`
    from `DEJAVU_CACHE_MODE`.

    Args:
        configs: the `triton.Config`s to choose from, as a sequence or a `config_space`.
        key: the arguments by whose values scenarios are told apart. The dtypes of tensors always
            count.
        prune_configs_by: functions that leave out configs for a launch: `early_config_prune`, or
            `perf_model` and `top_k`.
        reset_to_zero: tensor arguments that are set to zero before each benchmarked launch.
        restore_value: tensor arguments that are restored after each benchmarked launch.
        pre_hook: is called before each benchmarked launch: `pre_hook(arguments, reset_only)`.
        post_hook: is called after each benchmarked launch: `post_hook(arguments, exception)`.
        warmup: deprecated by Triton, in milliseconds.
        rep: deprecated by Triton, in milliseconds.
        use_cuda_graph: deprecated by Triton; `method="cudagraph-warm"` does the same.
        do_bench: a benchmark function `do_bench(kernel_call, quantiles)` that returns milliseconds,
            in place of `method`.
        cache_results: accepted and ignored: results are always kept.
        **options: any of the following, by name.

            - `buckets` (Mapping[str, Bucket | str | Mapping]): for some of the key arguments, the
              rule that maps a value to its bucket: `Pow2(max=4096)`, `"pow2"` or
              `{"kind": "pow2"}`.
            - `store` (Store | str | PathLike): the store, its URL or a folder; else
              `DEJAVU_CACHE_URL`.
            - `mode` (Mode | str): what a launch may do on a miss: `tune`, `reuse`, `strict` or
              `off`.
            - `default` (triton.Config | Mapping | Callable): the declared config that a miss falls
              back on, some of its values (`{"BLOCK": 64}` is the first config with them), or a
              function from the arguments by name to one of these; else the first config.
            - `max_distance` (float): the largest distance to a recorded scenario whose winner may
              stand in, in powers of two summed over the key arguments, 0 or more.
            - `method` (str): how configs are timed: `events-cold` (the default), `events-warm`,
              `cudagraph-cold` or `cudagraph-warm`.
            - `tune_seconds` (float): seconds that one tune may take, above 0; the next process
              continues it.
            - `tune_configs` (int): the number of measured configs at which a scenario counts as
              tuned, 1 or more.
            - `consensus` (str): `ranks` makes all ranks of a torch.distributed job run one rank's
              choice; `none` does not.
            - `check` (CheckOptions | bool): how results are compared with the default config's
              before a config may win; False compares nothing.
            - `prune_per` (str): within a bucket, `launch` (the default) prunes for each launch that
              differs in what the functions read of its arguments; `scenario` prunes once.

    Returns:
        A decorator from a kernel to its `CachedAutotuner`.

    Raises:
        SettingsError: when a kernel is decorated: it lacks `@triton.jit`, an option does not exist,
            there are no configs, a config sets what is neither an argument nor an option of a
            compiler, the key names what is no argument, a parameter has a value that it cannot
            have, a bucket names no key argument or is misspelled, the default is not among the
            configs, or `method` is given beside `do_bench`.

    Example:
        >>> @cached_autotune(configs=[...], key=["M"], buckets={"M": Pow2()})  # doctest: +SKIP
        ... @triton.jit
        ... def kernel(x_ptr, M, N, BLOCK: tl.constexpr): ...
    """
    parameters: dict[str, Any] = {
        "configs": configs,
        "key": key,
        "reset_to_zero": reset_to_zero,
        "restore_value": restore_value,
        "pre_hook": pre_hook,
        "post_hook": post_hook,
        "prune_configs_by": prune_configs_by,
        "warmup": warmup,
        "rep": rep,
        "use_cuda_graph": use_cuda_graph,
        "do_bench": do_bench,
    }

    def decorate(fn: Any) -> CachedAutotuner:
        check_declaration(fn, parameters)
        return CachedAutotuner(fn, fn.arg_names, **parameters, options=options)

    return decorate


def _declaring_property(name: str, text: str) -> Any:
    """Return a property of an autotuner on which its declaration depends."""
    place = f"_{name}"

    def assign(self: CachedAutotuner, value: Any) -> None:
        self.__dict__[place] = value
        self.forget_choices(_DERIVED)

    return property(attrgetter(place), assign, doc=text)


class CachedAutotuner(Autotuner):  # type: ignore[misc]
    """Triton's `Autotuner` over a store of records, as `cached_autotune` returns it.

    `configs`, `keys`, `fn` and `cache` may be assigned at any time, as for Triton's. The lists may
    also change in place: the next launch that does not take the hot path notices.

    A launch asks, in this order, for the only config, for what the program has put into `cache`,
    for what an earlier launch of the scenario found, and for a record. A miss is resolved by a tune
    or a fallback, as the mode says.

    Attributes:
        benchmarked: the number of configs that this object has benchmarked.
        is_adopted: whether the kernel belongs to a library that is unaware of the cache: Triton
            tunes it alone where the cache cannot.
    """

    configs = _declaring_property("configs", "The configs to choose from.")
    keys = _declaring_property("keys", "The names of the key arguments, as the program gave them.")
    fn = _declaring_property("fn", "The `triton.jit` function, or heuristics around one.")

    def __init__(
        self,
        fn: Any,
        arg_names: Sequence[str],
        configs: Sequence[Any],
        key: Sequence[str],
        *args: Any,
        options: CacheOptions | None = None,
        is_adopted: bool = False,
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
            is_adopted: whether the kernel is left to Triton where it cannot be cached.
            **kwargs: as for Triton's `Autotuner`.

        Raises:
            SettingsError: an option does not exist or has a value that it cannot have.
        """
        super().__init__(fn, arg_names, configs, key, *args, **kwargs)
        self.benchmarked = 0
        self.is_adopted = is_adopted
        self.nargs: dict[str, Any] | None = None
        self._name = kernel_name(fn)
        if not configs:  # `cached_autotune` refuses them, and Triton has a config of its own
            warn_once(f"configs {self._name}", f"{self._name}: {no_configs(configs)}")
        self._options = declared_options(
            self._name, options or {}, arg_names, self.configs, key, self._do_bench
        )
        self._interpreted = is_interpreting()
        self._resolvers: dict[bool, Resolver] = {}
        self._compiled: dict[Scenario, Any] = {}
        use_prewarmed_binaries()
        report_triton_activity()
        record_launches(self)
        leave_untraced()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Have a subclass with a `run` of its own launch by it, as a subclass of Triton's does."""
        super().__init_subclass__(**kwargs)
        if "run" in vars(cls) and "__getitem__" not in vars(cls):
            cls.__getitem__ = Autotuner.__getitem__  # type: ignore[method-assign]

    @property
    def cache(self) -> Any:
        """The configs by Triton's key of a launch; what a program puts there decides launches."""
        return self._cache

    @cache.setter
    def cache(self, cache: Any) -> None:
        # Triton's constructor makes the first one; a later mapping is the program's, of any kind.
        self._cache = cache if "_cache" in self.__dict__ else ConfigCache(cache)
        if isinstance(self._cache, ConfigCache):
            self._cache.add_user(self)
        self.forget_choices()

    def __copy__(self) -> CachedAutotuner:
        """Return an autotuner with the same cache, configs and choices, as a copy of Triton's."""
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        for name in _OWNED:
            twin.__dict__.pop(name, None)
        twin._resolvers = dict(self._resolvers)
        if isinstance(self._cache, ConfigCache):
            self._cache.add_user(twin)
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> CachedAutotuner:
        """Return an autotuner with copies of Triton's attributes and the same options."""
        memo[id(self)] = twin = copy.copy(self)
        twin._resolvers = {}
        if isinstance(self._cache, ConfigCache):
            twin.cache = self._cache.duplicate(lambda config: copy.deepcopy(config, memo))
        else:
            twin.cache = copy.deepcopy(self._cache, memo)
        for name in _COPIED:
            if hasattr(self, name):
                setattr(twin, name, copy.deepcopy(getattr(self, name), memo))
        return twin

    def forget_choices(self, derived: Sequence[str] = ()) -> None:
        """Choose anew at the next launch; records are looked up again.

        Args:
            derived: the derived attributes that are derived anew, too.
        """
        hot_path = self.__dict__.get("_hot_path")
        for name in derived:
            self.__dict__.pop(name, None)
        self._choices = Choices()
        if hot_path is not None:
            hot_path.forget()  # a program may have kept its launcher

    def _notice_changes_in_place(self) -> None:
        """Derive everything anew if the list of configs or of keys has changed in place."""
        declaration = self.__dict__.get("_declaration")
        if declaration is not None and not declaration.is_of(self._configs, self._keys):
            self.forget_choices(_DERIVED)

    def _notice_changed_code(self) -> bool:
        """Declare anew if Triton's key of the kernel has changed since it was last read.

        Returns:
            Whether it has, so that each launch's config is chosen anew.
        """
        now = identify(self.fn, (config.kwargs for config in self.configs))
        if now == self._declaration.key:
            return False
        self._declare()
        return True

    def _declare(self, code: str | None = None) -> None:
        """Take another declaration, whose code is another.

        Args:
            code: what Triton generates, if that is not what the kernel's key stands for.
        """
        self._declaration = Declaration.of(self, self._name, self._options, code)
        self.forget_choices()

    @cached_property
    def _declaration(self) -> Declaration:
        return Declaration.of(self, self._name, self._options)

    @property
    def method(self) -> str:
        """Name of the benchmark method, which is part of a record's key."""
        return benchmark_method(self, self._options)[0]

    @cached_property
    def do_bench(self) -> Callable[..., Any]:
        """Benchmark function: the caller's, or else a timer of the device or interpreter."""
        if self._interpreted and self._do_bench is None:
            return wall_clock
        method = self.method.removesuffix(KERNEL_ALONE)
        if method in METHODS and not is_timed_by_triton(self):
            return DeviceTimer(method)
        bench: Callable[..., Any] = self._do_bench or super().do_bench
        return bench

    @cached_property
    def mode(self) -> Mode:
        """Mode by the decorator, or else by the policy, or else by `DEJAVU_CACHE_MODE`.

        A kernel with configs that records must not hold is left to Triton.
        """
        if unnamed := why_unnamed(self.arg_names):
            warn_once(f"name {self._name}", f"{self._name}: {unnamed}")
            return Mode.OFF
        if not can_be_recorded(self._name, self.configs, self.arg_names):
            return Mode.OFF
        return self._options.get("mode") or current_settings().mode

    @property
    def buckets(self) -> Mapping[str, Bucket]:
        """The buckets of some of the key arguments."""
        return self._options["buckets"]

    @property
    def default(self) -> DefaultConfig | None:
        """The config of last resort, as the decorator or the policy says; None: the first one."""
        return self._options.get("default")

    @property
    def prunes(self) -> bool:
        """Whether pruning may leave out a config of some launch."""
        return self._declaration.prunes

    @property
    def source(self) -> str:
        """Key of the kernel's code; a unique one if nothing is stored."""
        return self._declaration.source

    @property
    def context(self) -> Context:
        """Context of the kernel's records on the current device."""
        return self._declaration.context(self._device())

    @property
    def home(self) -> TieredStore:
        """Store in which records are looked up and kept."""
        return self._resolver(self._declaration.not_stored).store

    def _note_change(self, context: Context) -> None:
        """Choose anew if records of this kernel have changed; called in a background thread."""
        if context in list(self._declaration.contexts.values()):
            self.forget_choices()

    def _resolver(self, not_stored: str | None) -> Resolver:
        """Return the resolver of the launches whose timings are stored, or of those whose are not.

        Args:
            not_stored: why they mean nothing to another process, or None if they do.
        """
        is_stored = not not_stored
        if is_stored in self._resolvers:
            return self._resolvers[is_stored]
        settings = current_settings()
        show_log(settings.log)
        tiers = as_tiers(self._options.get("store") if is_stored else MemoryStore())
        if self._declaration.consensus == "none":  # else no rank changes its choice alone
            tiers.keep_copies_right(self._note_change)
        max_distance = self._options.get("max_distance", settings.max_distance)
        resolver = Resolver(tiers, self.mode, max_distance, compares_code=True)
        return self._resolvers.setdefault(is_stored, resolver)

    @cached_property
    def _pruning(self) -> Pruning | None:
        """Pruning that may differ within a bucket; None if a key's first launch answers for all."""
        declaration = self._declaration
        per_launch = declaration.has_buckets and self._options.get("prune_per") != "scenario"
        return Pruning(self) if declaration.prunes and per_launch else None

    def _device(self) -> int:
        return INTERPRETER_INDEX if self._interpreted else current_device()

    @cached_property
    def _is_left_to_triton(self) -> bool:
        """Whether Triton tunes and launches the kernel, and nothing is looked up or recorded."""
        try:
            if self.mode is Mode.OFF or not self._is_on_known_device():
                return True
            _ = self._declaration  # what is wrong with it shows here
        except Exception as error:
            if not self._leaves_to_triton(error):
                raise
            self._warn_of_triton(error)
            return True
        module = foreign_run() if self.is_adopted else None
        if module is not None:
            warn_once(
                "foreign run",
                f"{module} has replaced Autotuner.run: it launches the kernels, and nothing is "
                "recorded",
            )
        return module is not None

    def _is_on_known_device(self) -> bool:
        """Return whether the device is one whose timings mean something elsewhere."""
        if not self._interpreted and len(self.configs) > 1:
            begin_digest()
        try:
            toolchain_on(self._device())
        except Exception as error:
            if is_from_signal_handler(error):
                raise
            warn_once("device", f"kernels are tuned by Triton alone: {error}")
            return False
        return True

    def _leaves_to_triton(self, error: Exception) -> bool:
        """Return whether an error of the cache leaves the kernel to Triton, as it is adopted."""
        is_asked_for = isinstance(error, ScenarioNotTuned)
        return self.is_adopted and not (is_asked_for or is_from_signal_handler(error))

    def _warn_of_triton(self, error: Exception) -> None:
        kind = "" if isinstance(error, DejavuError) else f"{type(error).__name__}: "
        reason = (str(error).splitlines() or [""])[0]
        warn_once(f"adopted {self._name}", f"{self._name} is tuned by Triton alone: {kind}{reason}")

    def __getitem__(self, grid: Any) -> Any:
        """Return the function that launches the kernel on a grid, as in `kernel[grid](…)`.

        Args:
            grid: one to three numbers of programs, or a function from the arguments to them.
        """
        attributes = self.__dict__
        if "run" in attributes:  # a program has wrapped this kernel's launches
            return super().__getitem__(grid)
        launch = self._launch

        def launch_on_grid(*args: Any, **kwargs: Any) -> Any:
            if "run" in attributes:  # it has wrapped them since
                return self.run(*args, grid=grid, warmup=False, **kwargs)
            try:
                return launch(grid, args, kwargs)
            except Exception as error:
                drop_own_frames(error)
                raise

        return launch_on_grid

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Launch the kernel with its scenario's config; `triton.heuristics` calls this method."""
        try:
            if "grid" not in kwargs or kwargs.get("warmup"):
                return Launch(self, args, kwargs).run()[0]
            grid = kwargs.pop("grid")
            kwargs.pop("warmup", None)
            return self._launch(grid, args, kwargs)
        except Exception as error:
            drop_own_frames(error)
            raise

    @cached_property
    def _hot_path(self) -> HotPath | None:
        """Hot path of the launches, where it applies."""
        if self._interpreted or self._is_left_to_triton or not is_covered(self.fn):
            return None
        return HotPath(self, self._declaration.scenario_key.keys, self.buckets, self._pruning)

    @cached_property
    def _launch(self) -> Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]:
        """Function that launches `(grid, args, kwargs)`, by the hot path where it applies."""
        if self._hot_path is not None:
            return self._hot_path.launcher()
        return lambda grid, args, kwargs: Launch(
            self, args, {"grid": grid, "warmup": False, **kwargs}
        ).run()[0]

    def request(self, *args: Any, **kwargs: Any) -> Request:
        """Return the request to the store that a launch with these arguments would make.

        Args:
            *args: the launch's positional arguments.
            **kwargs: its keyword arguments, `grid` and `warmup` included.
        """
        return self._declaration.request(self._copy_with(args), self._device(), args, kwargs)

    def _copy_with(self, args: Sequence[Any]) -> CachedAutotuner:
        """Return a copy for one launch, whose arguments Triton keeps on the autotuner."""
        twin = copy.copy(self)
        twin.nargs = dict(zip(self.arg_names, args, strict=False))
        return twin

    def explain(self, *args: Any, **kwargs: Any) -> Resolution:
        """Return how a launch with these arguments found its config, or would find it now.

        Nothing is launched or benchmarked, and no miss is noted.
        """
        request, resolution = Launch(self, args, kwargs).explain(is_kept=True)
        if request is None:
            return resolution
        return self._resolver(request.not_stored).add_notes(request, resolution)

    def look_up(self, *args: Any, **kwargs: Any) -> Resolution:
        """Return what the store says of a launch by now, and put a miss on its worklist.

        Ranks that choose together keep what they have agreed on.
        """
        request, resolution = Launch(self, args, kwargs).explain(is_kept=False)
        if request is not None and not resolution.final:
            self._resolver(request.not_stored).note_miss(request)
        return resolution


_PACKAGE = __name__.partition(".")[0]

_TRACED = ("model", "runtime", "settings", "stores", "system", "triton_internals", "tuning")
"""What a launch calls, and torch's compiler would trace; attention's own code it may trace."""


@cache
def leave_untraced() -> None:
    """Have torch.compile run the code behind launches as it is, now or once it is imported.

    Torch mostly takes a kernel into its graph. Where it launches one while it compiles, as one of
    an exported program or of a compiled backward pass, it would trace what a launch calls.
    """
    after_import("torch._dynamo.trace_rules", _add_rules)


def _add_rules(trace_rules: Any) -> None:
    try:
        for room in _TRACED:
            trace_rules.add(f"{_PACKAGE}.{room}")
    except Exception as error:  # private to torch, and may go or change
        warn_once(
            "untraced code",
            "torch.compile may trace the code behind launches of cached kernels: "
            f"{type(error).__name__}: {error}",
        )
