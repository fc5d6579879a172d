"""A launch whose compiled kernel the hot path does not know: choose its config, and run it.

The config is the only one, or what the program has put into `cache`, or what an earlier launch of
the scenario found, or a record's; a miss is resolved by a tune or a fallback, as the mode says. A
recorded config that cannot run here gives way to another one. While the process serves requests, a
compiled config stands in for one that is not.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import NoValidConfigError, UncomparedResultsError
from ..model.resolution import Resolution
from ..model.scenario import Context, Scenario
from ..model.selection import distance
from ..settings import current_settings
from ..system.notices import logger, warn_once
from ..triton_internals.cache_managers import launch_key
from ..triton_internals.config_names import DeclaredConfigs, describe
from ..triton_internals.environment import await_digest
from ..triton_internals.hooks import refusing_compilation
from ..triton_internals.identity import jit_function
from ..triton_internals.scenario_key import RawKey
from ..triton_internals.versions import Autotuner
from ..tuning.compile_ahead import BEFORE_LAUNCH, failure_of
from .choices import Choices, ChosenConfig, ConfigCache
from .consensus import agree
from .declaration import default_config, why_unnamed
from .events import ConfigChosen, emit
from .request import Request
from .resolver import OtherCodeError
from .service_phase import is_serving, may_benchmark, note_compilation

if TYPE_CHECKING:
    from .autotuner import CachedAutotuner

__all__ = ["Launch"]

_MOST_COMPILED = 4096
"""Scenarios of which it is known what was launched for them."""

_RETRY_AFTER = 5.0
"""Seconds until the config that a stand-in replaces is tried again: a warm-up may compile it."""


class Launch:
    """One launch of an autotuner.

    Args:
        autotuner: the kernel's.
        args: the positional arguments.
        kwargs: the keyword arguments, `grid` and `warmup` included.
    """

    __slots__ = ("_args", "_autotuner", "_configs", "_device", "_kwargs")

    _configs: Sequence[Any] | None
    _device: int

    def __init__(
        self, autotuner: CachedAutotuner, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Launch nothing yet."""
        self._autotuner = autotuner
        self._args = args
        self._kwargs = kwargs

    def run(self) -> tuple[Any, ChosenConfig]:
        """Launch through Triton; return its result and the config that was chosen."""
        autotuner = self._autotuner
        autotuner._notice_changes_in_place()
        if autotuner._is_left_to_triton:
            return self._run_by_triton(), ChosenConfig.of(autotuner.best_config, until=0.0)
        # A program's hooks may read the arguments.
        autotuner.nargs = dict(zip(autotuner.arg_names, self._args, strict=False))
        try:
            return self._run_recorded()
        finally:
            autotuner.nargs = None

    def _run_recorded(self) -> tuple[Any, ChosenConfig]:
        """Launch by a record or a tune; an adopted kernel, by Triton's where the cache fails."""
        try:
            chosen = self._choose()
        except Exception as error:
            is_left = self._autotuner._leaves_to_triton(error)
            if not (is_left or isinstance(error, NoValidConfigError)):
                raise
            failure = error
        else:
            return self._launch_or_choose_again(chosen)
        # Here, since what is raised next has no other error as its context, as with Triton alone.
        return self._run_adopted(failure) if is_left else self._run_default(failure)

    def _run_adopted(self, failure: Exception) -> tuple[Any, ChosenConfig]:
        """Have Triton tune and launch, and say why.

        Where the kernel or its hooks are at fault, this raises what Triton raises. Otherwise it
        leaves a config in `cache`, which later launches obey.
        """
        result = self._run_by_triton()
        self._autotuner._warn_of_triton(failure)
        return result, ChosenConfig.of(self._autotuner.best_config, until=0.0)

    def _run_default(self, failure: Exception) -> tuple[Any, ChosenConfig]:
        """Launch the default config where none has a usable timing.

        It raises what the compiler says of the kernel, as with Triton alone.
        """
        default = ChosenConfig.of(self._default(), until=0.0)
        reasons = getattr(failure, "reasons", {})
        if not reasons.get(str(describe(default.config)), "").startswith(BEFORE_LAUNCH):
            raise failure
        warn_once(f"failures {self._autotuner._name}", str(failure))
        return self._run_config(default), default

    def _launch_or_choose_again(self, chosen: ChosenConfig) -> tuple[Any, ChosenConfig]:
        """Launch a config; if it is a recorded one that cannot run here, choose another."""
        try:
            return self._launch_chosen(chosen)
        except Exception as error:
            if not self._reject(chosen, error):
                raise
        return self._run_recorded()

    def _reject(self, chosen: ChosenConfig, error: Exception) -> bool:
        """Leave out a recorded config that cannot run here; return whether another one is left.

        Compiling and loading a kernel fail before it runs, so the launch can be tried again. Ranks
        that choose together would not notice that one of them chose again.
        """
        autotuner, failure = self._autotuner, failure_of(error)
        if failure is None or failure.kind == "skipped":
            return False
        if chosen.resolution is None or not isinstance(autotuner.cache, ConfigCache):
            return False
        if autotuner._declaration.consensus != "none":
            return False
        key, config = self._find_key(), describe(chosen.config)
        request = self._request()
        if not autotuner._resolver(request.not_stored).reject(request, config, failure.reason):
            return False
        autotuner._choices.drop(key)
        return True

    def _launch_chosen(self, chosen: ChosenConfig) -> tuple[Any, ChosenConfig]:
        """Launch the chosen config, or a compiled one while the process serves; return both."""
        options = chosen.config.all_kwargs()
        if chosen.options != options:  # a program has changed the config in place
            chosen = chosen._replace(options=options)
        autotuner = self._autotuner
        if is_serving() and not (autotuner._interpreted or self._is_agreed):
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

    @property
    def _is_agreed(self) -> bool:
        """Whether ranks choose together, who must not differ by what each of them has compiled."""
        autotuner = self._autotuner
        return not autotuner._is_left_to_triton and autotuner._declaration.consensus != "none"

    def _launch_compiled(self, chosen: ChosenConfig) -> tuple[Any, ChosenConfig] | None:
        """Launch the chosen config or one that stands in for it, if its kernel is in memory."""
        with refusing_compilation(jit_function(self._autotuner)) as refused:
            result = self._run_config(chosen)
            if not refused.count:
                return result, chosen
            for config in self._stand_ins(chosen):
                until = time.monotonic() + _RETRY_AFTER
                stand_in = ChosenConfig.of(config, until, chosen.resolution)
                refused.count = 0
                result = self._run_config(stand_in)
                if not refused.count:
                    name = self._autotuner._name
                    logger.info("%s: (%s) stands in for (%s)", name, config, chosen.config)
                    return result, stand_in
        return None

    def _stand_ins(self, chosen: ChosenConfig) -> list[Any]:
        """Return the launched configs that may run here, those of the nearest scenarios first."""
        launched = dict(self._autotuner._compiled)
        if chosen.resolution is None or not launched:
            return []
        scenario = chosen.resolution.scenario
        request = self._autotuner.request(*self._args, **self._kwargs)
        usable = self._autotuner._resolver(request.not_stored).usable_configs(request)
        allowed = set(map(id, usable)) - {id(chosen.config)}
        nearest = sorted(launched, key=lambda other: distance(scenario, other))
        distinct = {id(launched[other]): launched[other] for other in nearest}
        return [config for identity, config in distinct.items() if identity in allowed]

    def _run_config(self, chosen: ChosenConfig) -> Any:
        autotuner, args, kwargs = self._autotuner, self._args, self._kwargs
        autotuner.best_config = config = chosen.config
        if config.pre_hook is not None:
            named = dict(zip(autotuner.arg_names, args, strict=False))
            config.pre_hook({**named, **kwargs, **chosen.options})
        return autotuner.fn.run(*args, **kwargs, **chosen.options)

    def _run_by_triton(self) -> Any:
        """Have Triton tune and launch; while the process serves, launch without a tune."""
        autotuner, args, kwargs = self._autotuner, self._args, self._kwargs
        if (
            may_benchmark()
            or len(autotuner.configs) < 2
            or launch_key(autotuner, args, kwargs) in autotuner.cache
        ):
            return Autotuner.run(autotuner, *args, **kwargs)
        return self._launch_chosen(ChosenConfig.of(self._default()))[0]

    def _default(self) -> Any:
        """Return the launch's default config, without a request to a store."""
        autotuner = self._autotuner
        twin = autotuner._copy_with(self._args)
        declared = DeclaredConfigs(autotuner._name, twin.prune_configs(dict(self._kwargs)))
        return default_config(twin, autotuner._name, autotuner._options, self._kwargs, declared)

    def _choose(self) -> ChosenConfig:
        """Return the config that the launch runs."""
        autotuner, cache = self._autotuner, self._autotuner.cache
        if len(autotuner.configs) < 2:
            return ChosenConfig.of(autotuner.configs[0])
        is_ours = isinstance(cache, ConfigCache)
        if is_ours and not cache.has_choices:
            return self._choose_for_scenario()
        key = launch_key(autotuner, self._args, self._kwargs)
        config = cache.choice(key) if is_ours else _entry(cache, key)
        if config is not None:
            chosen = ChosenConfig.of(config)
        else:
            chosen = self._choose_for_scenario()
            if chosen.is_final and not is_ours:
                cache[key] = chosen.config
        # A program's own mapping may change unnoticed. A bucket holds launches of several of
        # Triton's keys, which may have other entries.
        is_kept = is_ours and not autotuner._declaration.has_buckets
        return chosen if is_kept else chosen._replace(until=0.0)

    def _find_key(self) -> RawKey:
        """Return what is equal for launches of one scenario that pruning leaves the same configs.

        It holds in this process. The device and what pruning leaves are found with it.
        """
        autotuner, args, kwargs = self._autotuner, self._args, self._kwargs
        device = self._device = autotuner._device()
        raw = autotuner._declaration.scenario_key.raw(device, args, kwargs)
        pruning = autotuner._pruning
        if pruning is None:  # it is asked once per key, as by Triton
            self._configs = None
            return raw
        pruned = pruning.configs_for(device, args, kwargs)
        self._configs = pruned.configs
        return (*raw, pruned)

    def _choose_for_scenario(self) -> ChosenConfig:
        """Return what an earlier launch of the scenario found, or look it up."""
        # Before the key: pruning writes it in terms of configs, which may be assigned meanwhile.
        choices = self._autotuner._choices
        try:
            key = self._find_key()
            return choices.current(key) or self._look_up(key, choices)
        except TypeError:
            # Raises an error that names the key argument, if one of them is at fault.
            self._autotuner._declaration.scenario_key.scenario(self._args, self._kwargs)
            raise

    def _look_up(self, key: RawKey, choices: Choices) -> ChosenConfig:
        """Choose the config by a record, a tune or a fallback, and keep it in `choices`."""
        autotuner = self._autotuner
        # Before the lookup: what is written while it reads is then noticed by the next launch.
        declaration = autotuner._declaration
        context = declaration.context(self._device)
        revision = autotuner._resolver(declaration.not_stored).revision(context)
        if renewed := choices.renew_fallback(key, revision):
            return renewed
        if autotuner._notice_changed_code():  # it has another context, and no choices
            return self._look_up(key, autotuner._choices)
        request = self._request(context)
        request.refuse_conflicts()
        try:
            resolution = self._resolve_and_report(request, choices.last(key))
        except OtherCodeError as error:
            warn_once(
                f"code {autotuner._name}",
                f"{autotuner._name}{request.scenario}: Triton generates other code than was "
                "recorded under this key, by something that is not in the kernel's text; it is "
                "kept apart from now on",
            )
            autotuner._declare(error.code)
            return self._look_up(key, autotuner._choices)
        await_digest()
        chosen = choices.add(key, resolution, revision)
        # If they were forgotten meanwhile, the record has changed since it was read.
        return chosen if choices is autotuner._choices else chosen._replace(until=0.0)

    def _request(self, context: Context | None = None) -> Request:
        """Return the launch's request to the store.

        Args:
            context: the context of the kernel's records, if it was made.
        """
        twin, declaration = self._autotuner._copy_with(self._args), self._autotuner._declaration
        return declaration.request(
            twin, self._device, self._args, self._kwargs, self._configs, context
        )

    def _resolve_and_report(self, request: Request, fallback: ChosenConfig | None) -> Resolution:
        """Resolve a request; `fallback` is what earlier launches of the scenario ran, or None."""
        autotuner, start = self._autotuner, time.perf_counter()
        # A launch waits for another process's tune once; after that it only looks the record up.
        wait = 0.0 if fallback else current_settings().tune_wait
        resolution, benchmarked = self._resolve(request, wait)
        if benchmarked:
            autotuner.benchmarked += benchmarked
            autotuner.bench_time = time.perf_counter() - start
            values = resolution.config.all_kwargs()
            named = {**request.autotuner.nargs, **request.kwargs, **values}
            autotuner.pre_hook(named, reset_only=True)
        if resolution.is_idle:
            return resolution
        if resolution.uncompared:
            self._accept_default(resolution)
        before = fallback.resolution if fallback else None
        seconds = time.perf_counter() - start
        emit(ConfigChosen(autotuner, request, resolution, benchmarked, seconds, before))
        return resolution

    def _accept_default(self, resolution: Resolution) -> None:
        """Say once why a launch runs the default config, though it might be tuned.

        Raises:
            UncomparedResultsError: the kernel is adopted, and Triton compares no results.
        """
        name = self._autotuner._name
        if self._autotuner.is_adopted:
            raise UncomparedResultsError(f"no results can be compared: {resolution.uncompared}")
        warn_once(
            f"uncompared {name}",
            f"{name}{resolution.scenario}: the default config runs, since no other one's results "
            f"can be compared with its: {resolution.uncompared}; declare what holds results, "
            "check=CheckOptions(outputs=[…]), or have configs win by their times alone, "
            "check=False",
        )

    def _resolve(self, request: Request, wait: float) -> tuple[Resolution, int]:
        """Return the resolution of a request, and how many configs were benchmarked for it."""
        resolver = self._autotuner._resolver(request.not_stored)
        is_alone = self._autotuner._declaration.consensus == "none" or request.not_stored
        if is_alone or request.has_no_choice or request.has_empty_grid:
            return resolver.resolve(request, wait=wait)
        return agree(request, resolver, wait)

    def explain(self, *, is_kept: bool) -> tuple[Request | None, Resolution]:
        """Return the launch's request, if one would be made, and what the launch would run.

        Args:
            is_kept: whether what an earlier launch has found counts in any case; what ranks have
                agreed on always does.
        """
        autotuner = self._autotuner
        autotuner._notice_changes_in_place()
        if autotuner._is_left_to_triton:
            return None, self._explain_off()
        autotuner._notice_changed_code()
        key = self._find_key()
        request = self._request()
        if is_kept or autotuner._declaration.consensus != "none":
            chosen = autotuner._choices.last(key)
            if chosen is not None and chosen.is_final and chosen.resolution is not None:
                return request, chosen.resolution
        return request, autotuner._resolver(request.not_stored).explain(request)

    def _explain_off(self) -> Resolution:
        """Return what Triton's own autotuner runs; without a config until it has benchmarked."""
        autotuner, args, kwargs = self._autotuner, self._args, self._kwargs
        scenario_key = autotuner._declaration.scenario_key
        unnamed = why_unnamed(autotuner.arg_names)
        only = autotuner.configs[0] if len(autotuner.configs) == 1 else None
        return Resolution(
            "off",
            _entry(autotuner.cache, launch_key(autotuner, args, kwargs)) or only,
            Scenario() if unnamed else scenario_key.scenario(args, kwargs),
            autotuner.context,
            not_stored=unnamed,
        )


def _entry(cache: Any, key: Hashable) -> Any | None:
    """Return an entry of a mapping, or None; a program's own may have no `get`."""
    return cache[key] if key in cache else None  # noqa: SIM401
