"""Triton's `Autotuner` over a store of records.

Keep torch.compile from tracing the code behind a launch.

Torch mostly takes a kernel into its graph. Where it launches one while it compiles, as one of an
exported program or of a compiled backward pass, it would trace what a launch calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from ..errors import NoValidConfigError
from ..model.resolution import Resolution
from ..stores.tiered import TieredStore
from ..system.fork_lock import cached_property
from ..system.import_hooks import after_import
from ..system.notices import warn_once
from ..triton_internals.cache_managers import launch_key
from ..triton_internals.config_names import describe
from ..triton_internals.versions import Autotuner, is_covered
from ..tuning.compile_ahead import BEFORE_LAUNCH, failure_of
from .choices import ChosenConfig, CompiledConfigs, ConfigCache
from .choosing_autotuner import ChoosingAutotuner
from .events import report_triton_activity
from .hot_path import HotPath
from .launch_recorder import record_launches
from .options import drop_own_frames
from .prewarmed_binaries import use_prewarmed_binaries
from .request import Request
from .service_phase import may_benchmark

__all__ = [
    "CachedAutotuner",
    "leave_untraced",
]


_PACKAGE = __name__.partition(".")[0]
_ROOMS = ("model", "runtime", "settings", "stores", "system", "triton_internals", "tuning")
"""What a launch calls; attention's own code may be traced."""


@cache
def leave_untraced() -> None:
    """Have torch run the code as it is, from now on or from when its compiler is imported."""
    after_import("torch._dynamo.trace_rules", _add_rules)


def _add_rules(trace_rules: Any) -> None:
    try:
        for room in _ROOMS:
            trace_rules.add(f"{_PACKAGE}.{room}")
    except Exception as error:  # private to torch, and may go or change
        warn_once(
            "untraced code",
            "torch.compile may trace the code behind launches of cached kernels: "
            f"{type(error).__name__}: {error}",
        )


_OWNED = ("_hot_path", "_launch")
"""Derived attributes that hold the object itself."""


class CachedAutotuner(ChoosingAutotuner):
    """Triton's `Autotuner` over a store, as `cached_autotune` returns it.

    Attributes:
        benchmarked: the number of configs that this object has benchmarked.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Decorate a kernel; see `DeclaredAutotuner`, which takes the same arguments."""
        super().__init__(*args, **kwargs)
        self.nargs: dict[str, Any] | None = None
        self._compiled = CompiledConfigs(self._name)
        use_prewarmed_binaries()
        report_triton_activity()
        record_launches(self)
        leave_untraced()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Have a subclass with a `run` of its own launch by it, as a subclass of Triton's does."""
        super().__init_subclass__(**kwargs)
        if "run" in vars(cls) and "__getitem__" not in vars(cls):
            cls.__getitem__ = Autotuner.__getitem__  # type: ignore[method-assign]

    def forget_choices(self) -> None:
        """Choose anew at the next launch; records are looked up again."""
        super().forget_choices()
        self._forget_kernels()

    def _forget_kernels(self) -> None:
        hot_path = self.__dict__.get("_hot_path")
        if hot_path is not None:
            hot_path.forget()

    def _forget_declaration(self) -> None:
        self._forget_kernels()
        super()._forget_declaration()

    def __copy__(self) -> CachedAutotuner:
        """Return an autotuner with the same cache, configs and choices, as a copy of Triton's."""
        twin: CachedAutotuner = super().__copy__()
        for name in _OWNED:
            twin.__dict__.pop(name, None)
        if isinstance(self._cache, ConfigCache):
            self._cache.add_user(twin)
        return twin

    @property
    def home(self) -> TieredStore:
        """Store in which records are looked up and kept."""
        return self._resolver.store

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
                if self._is_left_to_triton:
                    return self._run_by_triton(args, kwargs)
                return self._run(args, kwargs)[0]
            grid = kwargs.pop("grid")
            kwargs.pop("warmup", None)
            return self._launch(grid, args, kwargs)
        except Exception as error:
            drop_own_frames(error)
            raise

    @cached_property
    def _hot_path(self) -> HotPath | None:
        """Hot path of the launches, where it applies."""
        if self._interpreted or not is_covered(self.fn):
            return None
        return HotPath(
            self, self._scenario_key.keys, self._buckets, self._run, pruning=self._launch_pruning
        )

    @cached_property
    def _launch(self) -> Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]:
        """Function that launches `(grid, args, kwargs)`, by the hot path where it applies."""
        if self._is_left_to_triton:
            theirs = self._run_by_triton
            return lambda grid, args, kwargs: theirs(
                args, {"grid": grid, "warmup": False, **kwargs}
            )
        if self._hot_path is not None:
            return self._hot_path.launcher()
        return lambda grid, args, kwargs: self._run(
            args, {"grid": grid, "warmup": False, **kwargs}
        )[0]

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ChosenConfig]:
        """Launch through Triton; return its result and the config that was chosen."""
        self._notice_changes_in_place()
        if self._is_left_to_triton:  # since its configs have changed
            return self._run_by_triton(args, kwargs), ChosenConfig.of(self.best_config, until=0.0)
        self.nargs = dict(zip(self.arg_names, args, strict=False))  # a program's hooks may read it
        try:
            return self._run_recorded(args, kwargs)
        finally:
            self.nargs = None

    def _run_recorded(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, ChosenConfig]:
        """Launch by records or a tune, as `_run` does where the kernel is not left to Triton."""
        try:
            chosen = self._choose(args, kwargs)
        except NoValidConfigError as error:
            reasons = error
        else:
            return self._launch_or_choose_again(chosen, args, kwargs)
        # The default config raises what the compiler says of the kernel, as with Triton alone.
        default = ChosenConfig.of(self._pruned_default(args, kwargs), until=0.0)
        if not reasons.reasons.get(str(describe(default.config)), "").startswith(BEFORE_LAUNCH):
            raise reasons
        warn_once(f"failures {self._name}", str(reasons))
        return self._run_config(default, args, kwargs), default

    def _launch_or_choose_again(
        self, chosen: ChosenConfig, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, ChosenConfig]:
        """Launch a config; if it is a recorded one that cannot run here, choose another."""
        try:
            return self._launch_chosen(chosen, args, kwargs)
        except Exception as error:
            if not self._reject(chosen, error, args, kwargs):
                raise
        return self._run_recorded(args, kwargs)

    def _reject(
        self, chosen: ChosenConfig, error: Exception, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> bool:
        """Leave out a recorded config that cannot run here; return whether another one is left.

        Compiling and loading a kernel fail before it runs, so the launch can be tried again. Ranks
        that choose together would not notice that one of them chose again.
        """
        failure = failure_of(error)
        if failure is None or failure.kind == "skipped" or self._consensus != "none":
            return False
        if chosen.resolution is None or not isinstance(self._cache, ConfigCache):
            return False
        launch = self._keyed(args, kwargs)
        request = self._request_of(launch)
        if not self._resolver_of(request).reject(request, describe(chosen.config), failure.reason):
            return False
        self._choices.drop(launch.key)
        return True

    def _launch_chosen(
        self, chosen: ChosenConfig, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, ChosenConfig]:
        """Launch the chosen config, or a compiled one while the process serves; return both."""
        options = chosen.config.all_kwargs()
        if chosen.options != options:  # a program has changed the config in place
            chosen = chosen._replace(options=options)
        # Ranks that choose together must not differ by what each of them has compiled.
        return self._compiled.launch(
            self,
            chosen,
            lambda candidate: self._run_config(candidate, args, kwargs),
            lambda: self._usable_configs(args, kwargs),
            may_compile=self._interpreted or self._consensus != "none",
        )

    def _usable_configs(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        request = self.request(*args, **kwargs)
        return self._resolver_of(request).usable_configs(request)

    def _run_by_triton(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Have Triton tune and launch; while the process serves, launch without a tune."""
        if may_benchmark() or len(self.configs) < 2 or launch_key(self, args, kwargs) in self.cache:
            return super().run(*args, **kwargs)
        chosen = ChosenConfig.of(self._pruned_default(args, kwargs))
        return self._launch_chosen(chosen, args, kwargs)[0]

    def _run_config(
        self, chosen: ChosenConfig, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self.best_config = config = chosen.config
        if config.pre_hook is not None:
            config.pre_hook(
                {**dict(zip(self.arg_names, args, strict=False)), **kwargs, **chosen.options}
            )
        return self.fn.run(*args, **kwargs, **chosen.options)

    def explain(self, *args: Any, **kwargs: Any) -> Resolution:
        """Return how a launch with these arguments found its config, or would find it now.

        Nothing is launched or benchmarked, and no miss is noted.
        """
        self._notice_changes_in_place()
        if self._is_left_to_triton:
            return self._explain_off(args, kwargs)
        self._notice_changed_code()
        request = self.request(*args, **kwargs)
        return self._resolver_of(request).add_evidence(request, self._explain_now(args, kwargs))

    def _explain_now(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Resolution:
        launch = self._keyed(args, kwargs)
        chosen = self._choices.final(launch.key)
        if chosen and chosen.resolution:
            return chosen.resolution
        request = self._request_of(launch)
        return self._resolver_of(request).explain(request)

    def look_up(self, *args: Any, **kwargs: Any) -> Resolution:
        """Return what the store says of a launch by now, and put a miss on its worklist.

        Ranks that choose together keep what they have agreed on.
        """
        self._notice_changes_in_place()
        if self._is_left_to_triton:
            return self._explain_off(args, kwargs)
        self._notice_changed_code()
        request = self.request(*args, **kwargs)
        if self._consensus == "none":
            resolution = self._resolver_of(request).explain(request)
        else:
            resolution = self._explain_now(args, kwargs)
        if not resolution.final:
            self._resolver_of(request).note_miss(request)
        return resolution

    def request(self, *args: Any, **kwargs: Any) -> Request:
        """Return the request to the store that a launch with these arguments would make.

        Args:
            *args: the launch's positional arguments.
            **kwargs: its keyword arguments, `grid` and `warmup` included.
        """
        return self._request(self._device(), args, kwargs)
