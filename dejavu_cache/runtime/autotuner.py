"""`@cached_autotune`: `triton.autotune` with a memory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ..errors import drop_own_frames
from ..model.scenario import Context, Scenario
from ..settings import Mode, current_settings
from ..stores import MemoryStore, TieredStore
from ..stores.copies import LocalCopies
from ..stores.tiered import as_tiers
from ..triton_internals.config_names import can_be_recorded
from ..triton_internals.environment import INTERPRETER_INDEX, current_device, is_interpreting
from ..triton_internals.hooks import retry_parsing
from ..triton_internals.identity import kernel_name
from ..triton_internals.versions import Autotuner, is_covered
from ..tuning.benchmark_methods import wall_clock
from ..tuning.device_timer import DeviceTimer
from .choices import Choices, ConfigCache
from .declaration import Declaration
from .events import report_triton_activity
from .hot_path import HotPath
from .launch import Launch, is_left_to_triton, leave_untraced
from .launch_recorder import record_launches
from .options import CacheOptions, declared_options, refuse_mistakes
from .prewarmed_binaries import use_prewarmed_binaries
from .request import Request, Resolution
from .resolver import Resolver

if TYPE_CHECKING:
    from triton import Config as TritonConfig
    from typing_extensions import Unpack

_OWNED = ("_hot_path", "_launch")
"""What is derived and holds the object itself, so that a copy needs its own."""

_DERIVED = ("declaration", "mode", "is_left_to_triton", *_OWNED)
"""What is derived from the attributes that a program may assign, in the order of derivation."""


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

    The parameters up to `cache_results` are those of `triton.autotune`, in its order.

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
        warmup: deprecated by Triton, and ignored: how long a config is measured is not fixed.
        rep: as `warmup`.
        use_cuda_graph: deprecated by Triton; stands for `method="cudagraph-warm"`.
        do_bench: a benchmark function `do_bench(kernel_call, quantiles)` that returns milliseconds,
            in place of `method`.
        cache_results: accepted and ignored: results are always kept.
        **options: as `CacheOptions` has them.

    Returns:
        A decorator from a kernel to its `CachedAutotuner`.

    Raises:
        SettingsError: when a kernel is decorated with what cannot work, or would be ignored, such
            as an option that does not exist or a misspelled field of a config.

    Example:
        >>> @cached_autotune(configs=[...], key=["M"], buckets={"M": Pow2()})  # doctest: +SKIP
        ... @triton.jit
        ... def kernel(x_ptr, M, N, BLOCK: tl.constexpr): ...
    """

    def decorate(fn: Any) -> CachedAutotuner:
        arguments = {"key": key, "reset_to_zero": reset_to_zero, "restore_value": restore_value}
        functions = {"pre_hook": pre_hook, "post_hook": post_hook, "do_bench": do_bench}
        refuse_mistakes(fn, configs, arguments, functions, prune_configs_by)
        return CachedAutotuner(
            fn, fn.arg_names, configs, key, reset_to_zero, restore_value, pre_hook, post_hook,
            prune_configs_by, use_cuda_graph=use_cuda_graph, do_bench=do_bench, options=options,
        )  # fmt: skip

    return decorate


def _declaring_property(name: str, text: str) -> Any:
    """Return a property of an autotuner on which its declaration depends."""
    attribute = f"_{name}"

    def assign(self: CachedAutotuner, value: Any) -> None:
        self.__dict__[attribute] = value
        self.declare()

    return property(attrgetter(attribute), assign, doc=text)


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
    _hot_path: HotPath | None = None

    def __init__(
        self,
        *args: Any,
        options: CacheOptions | None = None,
        is_adopted: bool = False,
        **kwargs: Any,
    ) -> None:
        """Decorate a kernel; `cached_autotune` describes the options.

        Args:
            *args: as for Triton's `Autotuner`.
            options: what `cached_autotune` adds to Triton's.
            is_adopted: whether the kernel is left to Triton where it cannot be cached.
            **kwargs: as for Triton's `Autotuner`.

        Raises:
            SettingsError: an option does not exist or has a value that it cannot have.
        """
        # Of these, Triton would make a benchmark function.
        deprecated = {name: kwargs.pop(name, None) for name in ("warmup", "rep", "use_cuda_graph")}
        super().__init__(*args, **kwargs)
        self.benchmarked = 0
        self.is_adopted = is_adopted
        self.nargs: dict[str, Any] | None = None
        self._name = kernel_name(self.fn)
        self._options = declared_options(
            self._name, options or {}, self.arg_names, self.configs, self.keys, self._do_bench
        )
        if deprecated["use_cuda_graph"]:
            self._options.setdefault("method", "cudagraph-warm")
        self._interpreted = is_interpreting()
        self._resolvers: dict[bool, Resolver] = {}
        self._compiled: dict[Scenario, Any] = {}
        retry_parsing()
        use_prewarmed_binaries()
        report_triton_activity()
        record_launches(self)
        leave_untraced()

    @property
    def cache(self) -> ConfigCache:
        """The configs by Triton's key of a launch; what a program puts there decides launches."""
        return self._cache

    @cache.setter
    def cache(self, entries: Any) -> None:
        self._cache = entries if isinstance(entries, ConfigCache) else ConfigCache(entries)
        self._cache.users.add(self)
        self.forget_choices()

    def __copy__(self) -> CachedAutotuner:
        """Return an autotuner with the same cache, configs and choices, as a copy of Triton's."""
        twin = self._copy_with(())
        twin.nargs, twin._resolvers = self.nargs, dict(self._resolvers)
        self._cache.users.add(twin)
        return twin

    def __deepcopy__(self, memo: object) -> CachedAutotuner:
        """Return a copy that shares what the autotuner refers to."""
        return copy.copy(self)

    def _copy_with(self, args: Sequence[Any]) -> CachedAutotuner:
        """Return a copy for one launch, whose arguments Triton keeps on the autotuner."""
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        for name in _OWNED:
            twin.__dict__.pop(name, None)
        twin.nargs = dict(zip(self.arg_names, args, strict=False))
        return twin

    def forget_choices(self) -> None:
        """Choose anew at the next launch; records are looked up again."""
        self._choices = Choices()
        if self._hot_path is not None:
            self._hot_path.forget()

    def declare(self, code: str | None = None) -> None:
        """Take another declaration; of other code than the kernel's key stands for, if given."""
        hot_path = self._hot_path
        for name in _DERIVED:
            self.__dict__.pop(name, None)
        if code is not None:
            self.declaration = Declaration.of(self, self._name, self._options, code)
        self.forget_choices()
        if hot_path is not None:
            hot_path.forget()  # a program may have kept its launcher

    @cached_property
    def declaration(self) -> Declaration:
        """What the decorator and the program say of the kernel."""
        return Declaration.of(self, self._name, self._options)

    @cached_property
    def do_bench(self) -> Callable[..., Any]:
        """Benchmark function: the caller's, or else a timer of the device or interpreter."""
        if self._do_bench is not None or self._interpreted:
            return self._do_bench or wall_clock
        return DeviceTimer(self.declaration.problem.method)

    @cached_property
    def mode(self) -> Mode:
        """Mode by the decorator, or else by the policy, or else by `DEJAVU_CACHE_MODE`.

        A kernel with configs that records must not hold is left to Triton.
        """
        if not can_be_recorded(self._name, self.configs, self.arg_names):
            return Mode.OFF
        return self._options.get("mode") or current_settings().mode

    @property
    def context(self) -> Context:
        """Context of the kernel's records on the current device."""
        return self.declaration.context(self.device())

    @property
    def home(self) -> TieredStore:
        """Store in which records are looked up and kept."""
        return self.resolver(self.declaration.not_stored).store

    def _note_change(self, context: Context) -> None:
        """Choose anew if records of this kernel have changed; called in a background thread."""
        if context in list(self.declaration.contexts.values()):
            self.forget_choices()

    def resolver(self, not_stored: str | None) -> Resolver:
        """Return the resolver of launches that are not stored, for a reason, or of the others."""
        is_stored = not not_stored
        if is_stored in self._resolvers:
            return self._resolvers[is_stored]
        tiers = as_tiers(self._options.get("store") if is_stored else MemoryStore())
        # Of ranks that choose together, none changes its choice alone.
        if tiers.remote and self.declaration.consensus == "none" and current_settings().refresh:
            tiers.copies = LocalCopies(tiers.tiers, self._note_change)
        resolver = Resolver(tiers, self.mode, compares_code=True)
        return self._resolvers.setdefault(is_stored, resolver)

    def device(self) -> int:
        """Return the index of the device on which a launch would run now."""
        return INTERPRETER_INDEX if self._interpreted else current_device()

    is_left_to_triton = cached_property(is_left_to_triton)

    def __getitem__(self, grid: Any) -> Any:
        """Return the function that launches the kernel on a grid, as in `kernel[grid](…)`."""
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
            kwargs.pop("warmup", None)
            return self._launch(kwargs.pop("grid"), args, kwargs)
        except Exception as error:
            drop_own_frames(error)
            raise

    @cached_property
    def _launch(self) -> Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]:
        """Function that launches `(grid, args, kwargs)`, by the hot path where it applies."""
        if not (self._interpreted or self.is_left_to_triton) and is_covered(self.fn):
            self._hot_path = HotPath(self)
            return self._hot_path.launcher()
        return lambda grid, args, kwargs: Launch(
            self, args, {"grid": grid, "warmup": False, **kwargs}
        ).run()[0]

    def request(self, *args: Any, **kwargs: Any) -> Request:
        """Return the request to the store that a launch with these arguments would make."""
        return Launch(self, args, kwargs).request()

    def explain(self, *args: Any, **kwargs: Any) -> Resolution:
        """Return how a launch with these arguments found its config, or would find it now.

        Nothing is launched or benchmarked, and no miss is noted.
        """
        request, resolution = Launch(self, args, kwargs).explain(is_kept=True)
        if request is None:
            return resolution
        return self.resolver(request.not_stored).add_notes(request, resolution)

    def look_up(self, *args: Any, **kwargs: Any) -> Resolution:
        """Return what the store says of a launch by now, and put a miss on its worklist.

        Ranks that choose together keep what they have agreed on.
        """
        request, resolution = Launch(self, args, kwargs).explain(is_kept=False)
        if request is not None and not resolution.final:
            self.resolver(request.not_stored).note_look_up(request, resolution)
        return resolution
