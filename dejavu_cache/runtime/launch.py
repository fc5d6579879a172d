"""A launch whose compiled kernel the hot path does not know: choose its config, and run it.

The config is the only one, or what the program has put into `cache`, or what an earlier launch of
the scenario found, or a record's; a miss is resolved by a tune or a fallback, as the mode says. A
recorded config that cannot run here gives way to another one. While the process serves requests, a
compiled config stands in for one that is not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from ..errors import DejavuError, NoValidConfigError, ScenarioNotTuned, UncomparedResultsError
from ..model.selection import distance
from ..settings import Mode, current_settings
from ..system.background_threads import is_from_signal_handler, let_signals_through
from ..system.import_hooks import after_import
from ..system.notices import logger, warn_once
from ..triton_internals.config_names import DeclaredConfigs, describe
from ..triton_internals.environment import UNREADABLE, await_digest, begin_digest, toolchain_on
from ..triton_internals.hooks import build_driver_aside, foreign_run, refusing_compilation
from ..triton_internals.identity import identify, jit_function
from ..triton_internals.scenario_key import RawKey
from ..triton_internals.versions import Autotuner
from ..tuning.compile_ahead import BEFORE_LAUNCH, failure_of
from .choices import Choices, ChosenConfig, launch_key
from .consensus import agree
from .declaration import default_config, say_unstored
from .events import ConfigChosen, emit
from .request import Request, Resolution
from .resolver import OtherCodeError
from .service_phase import is_serving, may_benchmark, note_compilation

if TYPE_CHECKING:
    from .autotuner import CachedAutotuner

_MOST_COMPILED = 4096
"""Scenarios of which it is known what was launched for them."""

_RETRY_AFTER = 5.0
"""Seconds until the config that a stand-in replaces is tried again: a warm-up may compile it."""


@dataclass(eq=False, slots=True)
class Launch:
    """One launch of an autotuner.

    Attributes:
        autotuner: the kernel's.
        args: the positional arguments.
        kwargs: the keyword arguments, `grid` and `warmup` included.
        device: the device's index; None until it is asked for.
        configs: what pruning leaves, if it was asked.
    """

    autotuner: CachedAutotuner
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    device: int | None = None
    configs: Sequence[Any] | None = None

    def run(self) -> tuple[Any, ChosenConfig]:
        """Launch through Triton; return its result and the config that was chosen."""
        autotuner = self.autotuner
        _notice_changed_lists(autotuner)
        if autotuner.is_left_to_triton:
            return self._run_by_triton(), ChosenConfig.of(autotuner.best_config, until=0.0)
        # A program's hooks may read the arguments.
        autotuner.nargs = dict(zip(autotuner.arg_names, self.args, strict=False))
        try:
            return self._run_recorded()
        finally:
            autotuner.nargs = None

    def _run_recorded(self) -> tuple[Any, ChosenConfig]:
        """Launch by a record or a tune; an adopted kernel, by Triton's where the cache fails."""
        try:
            chosen = self._choose()
        except Exception as error:
            is_left = _leaves_to_triton(self.autotuner, error)
            if not (is_left or isinstance(error, NoValidConfigError)):
                raise
            failure = error
        else:
            try:
                return self._launch(chosen)
            except Exception as error:
                if not self._reject(chosen, error):
                    raise
            return self._run_recorded()
        # Here, since what is raised next has no other error as its context, as with Triton alone.
        if not is_left:
            return self._run_default(failure)
        # Where the kernel or its hooks are at fault, this raises what Triton raises. Otherwise it
        # leaves a config in `cache`, which later launches obey.
        result = self._run_by_triton()
        _warn_of_triton(self.autotuner, failure)
        return result, ChosenConfig.of(self.autotuner.best_config, until=0.0)

    def _run_default(self, failure: Exception) -> tuple[Any, ChosenConfig]:
        """Launch the default config where none has a usable timing.

        It raises what the compiler says of the kernel, as with Triton alone.
        """
        default = ChosenConfig.of(self._default(), until=0.0)
        reasons = getattr(failure, "reasons", {})
        if not reasons.get(str(describe(default.config)), "").startswith(BEFORE_LAUNCH):
            raise failure
        warn_once(f"failures {self.autotuner._name}", str(failure))
        return self._run_config(default), default

    def _reject(self, chosen: ChosenConfig, error: Exception) -> bool:
        """Leave out a recorded config that cannot run here; return whether another one is left.

        Compiling and loading a kernel fail before it runs, so the launch can be tried again. Ranks
        that choose together would not notice that one of them chose again.
        """
        autotuner, failure = self.autotuner, failure_of(error)
        if failure is None or failure.kind == "skipped":
            return False
        if chosen.resolution is None or autotuner.declaration.consensus != "none":
            return False
        key, config = self._find_key(), describe(chosen.config)
        request = self.request()
        if not autotuner.resolver(request.not_stored).reject(request, config, failure.reason):
            return False
        autotuner._choices.kept.pop(key, None)
        return True

    def _launch(self, chosen: ChosenConfig) -> tuple[Any, ChosenConfig]:
        """Launch the chosen config, or a compiled one while the process serves; return both."""
        options = chosen.config.all_kwargs()
        if chosen.options != options:  # a program has changed the config in place
            chosen = chosen._replace(options=options)
        autotuner = self.autotuner
        # Ranks that choose together must not differ by what each of them has compiled.
        is_alone = autotuner.is_left_to_triton or autotuner.declaration.consensus == "none"
        if is_alone and not autotuner._interpreted and is_serving():
            launched = self._launch_compiled(chosen)
            if launched is not None:
                return launched
            note_compilation(autotuner._name)
        result = self._run_config(chosen)
        if chosen.resolution is not None:
            scenario, compiled = chosen.resolution.scenario, autotuner._compiled
            if scenario in compiled or len(compiled) < _MOST_COMPILED:
                compiled[scenario] = chosen.config
        return result, chosen

    def _launch_compiled(self, chosen: ChosenConfig) -> tuple[Any, ChosenConfig] | None:
        """Launch the chosen config or one that stands in for it, if its kernel is in memory."""
        with refusing_compilation(jit_function(self.autotuner)) as refused:
            result = self._run_config(chosen)
            if not refused:
                return result, chosen
            for config in self._stand_ins(chosen):
                until = time.monotonic() + _RETRY_AFTER
                stand_in = ChosenConfig.of(config, until, chosen.resolution, chosen.launches)
                refused.clear()
                result = self._run_config(stand_in)
                if not refused:
                    name = self.autotuner._name
                    logger.info("%s: (%s) stands in for (%s)", name, config, chosen.config)
                    return result, stand_in
        return None

    def _stand_ins(self, chosen: ChosenConfig) -> list[Any]:
        """Return the launched configs that may run here, those of the nearest scenarios first."""
        launched = dict(self.autotuner._compiled)
        if chosen.resolution is None or not launched:
            return []
        scenario = chosen.resolution.scenario
        request = self.request()
        usable = self.autotuner.resolver(request.not_stored).usable_configs(request)
        allowed = set(map(id, usable)) - {id(chosen.config)}
        nearest = sorted(launched, key=lambda other: distance(scenario, other))
        distinct = {id(launched[other]): launched[other] for other in nearest}
        return [config for identity, config in distinct.items() if identity in allowed]

    def _run_config(self, chosen: ChosenConfig) -> Any:
        autotuner, args, kwargs = self.autotuner, self.args, self.kwargs
        autotuner.best_config = config = chosen.config
        if config.pre_hook is not None:
            named = dict(zip(autotuner.arg_names, args, strict=False))
            config.pre_hook({**named, **kwargs, **chosen.options})
        return autotuner.fn.run(*args, **kwargs, **chosen.options)

    def _run_by_triton(self) -> Any:
        """Have Triton tune and launch; while the process serves, launch without a tune."""
        autotuner, args, kwargs = self.autotuner, self.args, self.kwargs
        if (
            may_benchmark()
            or len(autotuner.configs) < 2
            or launch_key(autotuner, args, kwargs) in autotuner.cache
        ):
            return Autotuner.run(autotuner, *args, **kwargs)
        return self._launch(ChosenConfig.of(self._default()))[0]

    def _default(self) -> Any:
        """Return the launch's default config, without a request to a store."""
        autotuner = self.autotuner
        twin = autotuner._copy_with(self.args)
        declared = DeclaredConfigs(autotuner._name, twin.prune_configs(dict(self.kwargs)))
        return default_config(twin, autotuner._options, self.kwargs, declared)

    def _choose(self) -> ChosenConfig:
        """Return the config that the launch runs."""
        autotuner, cache = self.autotuner, self.autotuner._cache
        if len(autotuner.configs) < 2:
            return ChosenConfig.of(autotuner.configs[0])
        until = math.inf
        if cache.has_choices:
            if autotuner.declaration.has_buckets:
                until = 0.0  # launches of one bucket have several of Triton's keys
            config = cache.choice(launch_key(autotuner, self.args, self.kwargs))
            if config is not None:
                return ChosenConfig.of(config, until)
        # Before the key: pruning writes it in terms of configs, which may be assigned meanwhile.
        choices = autotuner._choices
        try:
            key = self._find_key()
            chosen = choices.kept.get(key)
        except TypeError:
            # Raises an error that names the key argument, if one of them is at fault.
            autotuner.declaration.scenario_key.launch_scenario(self.args, self.kwargs)
            raise
        if chosen is None or chosen.until <= time.monotonic():
            chosen = self._look_up(key, choices, chosen)
        else:
            next(chosen.launches)
        return chosen._replace(until=min(until, chosen.until))

    def _find_key(self) -> RawKey:
        """Return what is equal for launches of one scenario that pruning leaves the same configs.

        It holds in this process. The device and what pruning leaves are found with it.
        """
        autotuner, args, kwargs = self.autotuner, self.args, self.kwargs
        device = self.device = autotuner.device()
        raw = autotuner.declaration.scenario_key.raw(device, args, kwargs)
        pruning = autotuner.declaration.pruning
        if pruning is None:  # it is asked once per key, as by Triton
            self.configs = None
            return raw
        self.configs, pruned = pruning.answer(device, args, kwargs)
        return (*raw, pruned)

    def _look_up(self, key: RawKey, choices: Choices, before: ChosenConfig | None) -> ChosenConfig:
        """Choose the config by a record, a tune or a fallback, and keep it in `choices`.

        Args:
            key: the launch's raw key.
            choices: the autotuner's when the key was found.
            before: what earlier launches of the scenario ran, or None.
        """
        autotuner, start = self.autotuner, time.perf_counter()
        if autotuner.declaration.key != identify(autotuner.fn, autotuner.configs):
            autotuner.declare()  # it has another context, and no choices
            return self._look_up(key, autotuner._choices, None)
        request = self.request()
        request.refuse_conflicts()
        resolver = autotuner.resolver(request.not_stored)
        # A launch waits for another process's tune once; after that it only looks the record up.
        wait = 0.0 if before else current_settings().tune_wait
        is_alone = autotuner.declaration.consensus == "none" or request.not_stored
        try:
            if is_alone or request.has_no_choice or request.has_empty_grid:
                resolution, benchmarked = resolver.resolve(request, wait=wait)
            else:
                resolution, benchmarked = agree(request, resolver, wait)
        except OtherCodeError as error:
            warn_once(
                f"code {autotuner._name}",
                f"{autotuner._name}{request.scenario}: Triton generates other code than was "
                "recorded under this key, by something that is not in the kernel's text; it is "
                "kept apart from now on",
            )
            autotuner.declare(error.code)
            return self._look_up(key, autotuner._choices, None)
        seconds = time.perf_counter() - start
        if benchmarked:
            autotuner.benchmarked += benchmarked
            autotuner.bench_time = seconds
            values = resolution.config.all_kwargs()
            named = {**request.autotuner.nargs, **request.kwargs, **values}
            autotuner.pre_hook(named, reset_only=True)
        if resolution.not_tuned and not resolution.is_idle:
            self._accept_default(resolution)
        if not resolution.is_idle:
            former = before.resolution if before else None
            timings = getattr(request.autotuner, "configs_timings", None) or {}
            emit(
                ConfigChosen(autotuner, request, resolution, benchmarked, seconds, former, timings)
            )
        await_digest()
        chosen = choices.add(key, resolution, resolver.counter(request, resolution))
        # If they were forgotten meanwhile, the record has changed since it was read.
        return chosen if choices is autotuner._choices else chosen._replace(until=0.0)

    def request(self) -> Request:
        """Return the launch's request to the store."""
        declaration, args, kwargs = self.autotuner.declaration, self.args, self.kwargs
        device = self.autotuner.device() if self.device is None else self.device
        autotuner, configs = self.autotuner._copy_with(args), self.configs
        if configs is None:
            configs = autotuner.prune_configs(dict(kwargs))
        declared = DeclaredConfigs(declaration.name, configs)
        scenario, unstored = declaration.scenario_key.launch_scenario(args, kwargs, device)
        context = declaration.context(device)
        settings = context.environment.variables
        if UNREADABLE in settings.values():
            unreadable = [name for name, value in settings.items() if value == UNREADABLE]
            unstored = f"{', '.join(unreadable)} has no text that stands for it"
        if unstored and not declaration.not_stored:
            say_unstored(declaration.name, unstored)
        return Request(
            autotuner=autotuner,
            context=context,
            scenario=scenario,
            declared=declared,
            default=default_config(autotuner, declaration.options, kwargs, declared),
            exact=declaration.exact,
            args=args,
            kwargs=dict(kwargs),
            budget=declaration.budget,
            check=declaration.check,
            prunes=declaration.prunes,
            not_stored=declaration.not_stored or unstored,
        )

    def _accept_default(self, resolution: Resolution) -> None:
        """Say once why a launch runs the default config, though it might be tuned.

        Raises:
            UncomparedResultsError: the kernel is adopted, and Triton compares no results.
        """
        name = self.autotuner._name
        if self.autotuner.is_adopted:
            raise UncomparedResultsError(f"no results can be compared: {resolution.not_tuned}")
        warn_once(
            f"uncompared {name}",
            f"{name}{resolution.scenario}: the default config runs, since no other one's results "
            f"can be compared with its: {resolution.not_tuned}; declare what holds results, "
            "check=CheckOptions(outputs=[…]), or have configs win by their times alone, "
            "check=False",
        )

    def explain(self, *, is_kept: bool) -> tuple[Request | None, Resolution]:
        """Return the launch's request, if one would be made, and what the launch would run.

        Args:
            is_kept: whether what an earlier launch has found counts in any case; what ranks have
                agreed on always does.
        """
        autotuner, args, kwargs = self.autotuner, self.args, self.kwargs
        _notice_changed_lists(autotuner)
        if autotuner.is_left_to_triton:
            only = autotuner.configs[0] if len(autotuner.configs) == 1 else None
            config = only or autotuner.cache.get(launch_key(autotuner, args, kwargs))
            scenario, _ = autotuner.declaration.scenario_key.launch_scenario(args, kwargs)
            return None, Resolution("default", config, scenario, autotuner.context, by_triton=True)
        if autotuner.declaration.key != identify(autotuner.fn, autotuner.configs):
            autotuner.declare()
        key = self._find_key()
        request = self.request()
        if is_kept or autotuner.declaration.consensus != "none":
            kept = autotuner._choices.kept.get(key)
            if kept is not None and kept.resolution is not None and kept.resolution.final:
                return request, kept.resolution
        return request, autotuner.resolver(request.not_stored).explain(request)


def _notice_changed_lists(autotuner: CachedAutotuner) -> None:
    """Declare anew if the list of configs or of keys has changed in place."""
    declaration = vars(autotuner).get("declaration")
    if declaration is not None:
        # Lists of the same objects are equal without a look into them, so this takes little time.
        is_same = declaration.listed is None or declaration.listed == autotuner.configs
        if not is_same or declaration.keys != [*autotuner.keys]:
            autotuner.declare()


def is_left_to_triton(autotuner: CachedAutotuner) -> bool:
    """Return whether Triton tunes and launches a kernel, and nothing is looked up or recorded."""
    try:
        if autotuner.mode is Mode.OFF:
            return True
        try:
            if not autotuner._interpreted and len(autotuner.configs) > 1:
                begin_digest()
                build_driver_aside()
            toolchain_on(autotuner.device())
        except Exception as error:
            let_signals_through(error)
            warn_once("device", f"kernels are tuned by Triton alone: {error}")
            return True
        _ = autotuner.declaration  # what is wrong with it shows here
    except Exception as error:
        if not _leaves_to_triton(autotuner, error):
            raise
        _warn_of_triton(autotuner, error)
        return True
    module = foreign_run() if autotuner.is_adopted else None
    if module is not None:
        warn_once(
            "foreign run",
            f"{module} has replaced Autotuner.run: it launches the kernels, and nothing is "
            "recorded",
        )
    return module is not None


def _leaves_to_triton(autotuner: CachedAutotuner, error: Exception) -> bool:
    """Return whether an error of the cache leaves the kernel to Triton, as it is adopted."""
    is_asked_for = isinstance(error, ScenarioNotTuned)
    return autotuner.is_adopted and not (is_asked_for or is_from_signal_handler(error))


def _warn_of_triton(autotuner: CachedAutotuner, error: Exception) -> None:
    kind = "" if isinstance(error, DejavuError) else f"{type(error).__name__}: "
    reason = (str(error).splitlines() or [""])[0]
    name = autotuner._name
    warn_once(f"adopted {name}", f"{name} is tuned by Triton alone: {kind}{reason}")


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
    for room in _TRACED:
        trace_rules.add(f"{_PACKAGE}.{room}")
