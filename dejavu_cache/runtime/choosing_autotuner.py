"""How an autotuner chooses a launch's config: by records, by a tune, or as the program says."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..model.resolution import Resolution
from ..model.scenario import Context
from ..settings import Mode, current_settings
from ..stores import MemoryStore
from ..stores.urls import as_tiers
from ..system.background_threads import is_from_signal_handler
from ..system.fork_lock import cached_property
from ..system.notices import show_log, warn_once
from ..triton_internals.cache_managers import launch_key
from ..triton_internals.environment import await_digest, begin_digest, toolchain_on
from ..triton_internals.scenario_key import RawKey
from .choices import Choices, ChosenConfig, ConfigCache
from .consensus import agree
from .declared_autotuner import DeclaredAutotuner
from .events import ConfigChosen, emit
from .request import Request
from .resolver import OtherCodeError, Resolver

__all__ = ["ChoosingAutotuner", "KeyedLaunch"]


class KeyedLaunch(NamedTuple):
    """A launch, and the key under which its config is kept in this process.

    Attributes:
        key: equal for launches of one scenario that pruning leaves the same configs.
        device: the device's index.
        configs: what pruning leaves; None where it is asked once per key, as by Triton.
        args: the positional arguments.
        kwargs: the keyword arguments, `grid` and `warmup` included.
    """

    key: RawKey
    device: int
    configs: Sequence[Any] | None
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


class ChoosingAutotuner(DeclaredAutotuner):
    """Autotuner that chooses the config of each launch.

    `_choose` asks, in this order, for the only config, for what the program has put into `cache`,
    for what an earlier launch of the scenario found, and for a record. A miss is resolved by a tune
    or a fallback, as the mode says.
    """

    def forget_choices(self) -> None:
        """Choose anew at the next launch; records are looked up again."""
        self._choices = Choices()

    @cached_property
    def _resolver(self) -> Resolver:
        return self._make_resolver(MemoryStore() if self._not_stored else None)

    @cached_property
    def _private_resolver(self) -> Resolver:
        """Resolver of the launches that mean nothing to another process."""
        return self._make_resolver(MemoryStore())

    def _resolver_of(self, request: Request) -> Resolver:
        is_private = request.not_stored and not self._not_stored
        return self._private_resolver if is_private else self._resolver

    def _make_resolver(self, private: MemoryStore | None) -> Resolver:
        settings = current_settings()
        show_log(settings.log)
        limits = (
            self._options.get("max_distance"),
            self._policy.max_distance,
            settings.max_distance,
        )
        max_distance = next(limit for limit in limits if limit is not None)
        tiers = as_tiers(private or self._options.get("store"))
        if self._consensus == "none":  # ranks choose together, so none of them changes alone
            tiers.keep_copies_right(self._note_change)
        return Resolver(tiers, self.mode, max_distance, settings, compares_code=True)

    def _note_change(self, context: Context) -> None:
        """Choose anew if records of this kernel have changed; called in a background thread."""
        if context in list(self._contexts.values()):
            self.forget_choices()

    @cached_property
    def _is_left_to_triton(self) -> bool:
        """Whether Triton tunes and launches the kernel, and nothing is looked up or recorded."""
        if self.mode is Mode.OFF:
            return True
        if not self._interpreted and len(self.configs) > 1:
            begin_digest()
        try:
            toolchain_on(self._device())
        except Exception as error:  # no timing of an unknown device means anything elsewhere
            if is_from_signal_handler(error):
                raise
            warn_once("device", f"kernels are tuned by Triton alone: {error}")
            return True
        return False

    def _choose(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ChosenConfig:
        """Return the config that a launch runs."""
        if len(self.configs) < 2:
            return ChosenConfig.of(self.configs[0])
        cache = self._cache
        if not isinstance(cache, ConfigCache):
            return self._choose_by_mapping(cache, args, kwargs)
        if not cache.has_choices:
            return self._choose_for_scenario(args, kwargs)
        config = cache.choice(launch_key(self, args, kwargs))
        if config is None:
            chosen = self._choose_for_scenario(args, kwargs)
        else:
            chosen = ChosenConfig.of(config)
        # A bucket holds launches of several of Triton's keys, which may have other entries.
        return chosen._replace(until=0.0) if self._has_buckets else chosen

    def _choose_by_mapping(
        self, cache: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> ChosenConfig:
        """Choose by a mapping that the program has put in the place of Triton's, and fill it.

        It may be of any kind, and change unnoticed.
        """
        key = launch_key(self, args, kwargs)
        config = cache[key] if key in cache else None  # noqa: SIM401 - it may have no `get`
        if config is not None:
            return ChosenConfig.of(config, until=0.0)
        chosen = self._choose_for_scenario(args, kwargs)
        if chosen.is_final:
            cache[key] = chosen.config
        return chosen._replace(until=0.0)

    def _choose_for_scenario(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ChosenConfig:
        """Return what an earlier launch of the scenario found, or look it up."""
        # Before the key: pruning writes it in terms of configs, which may be assigned meanwhile.
        choices = self._choices
        try:
            key, device, configs = self._key_of(args, kwargs)
            if current := choices.current(key):
                return current
            launch = KeyedLaunch(key, device, configs, args, kwargs)
            return self._look_up_choice(launch, choices)
        except TypeError:
            # Raises an error that names the key argument, if one of them is at fault.
            self._scenario_key.scenario(args, kwargs)
            raise

    def _keyed(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> KeyedLaunch:
        return KeyedLaunch(*self._key_of(args, kwargs), args, kwargs)

    def _key_of(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[RawKey, int, Sequence[Any] | None]:
        """Return the first three parts of a `KeyedLaunch`."""
        device = self._device()
        scenario = self._scenario_key.raw(device, args, kwargs)
        if self._launch_pruning is None:
            return scenario, device, None
        pruned = self._launch_pruning.configs_for(device, args, kwargs)
        return (*scenario, pruned), device, pruned.configs

    def _request_of(self, launch: KeyedLaunch, context: Context | None = None) -> Request:
        return self._request(launch.device, launch.args, launch.kwargs, launch.configs, context)

    def _look_up_choice(self, launch: KeyedLaunch, choices: Choices) -> ChosenConfig:
        """Choose a launch's config by a record, a tune or a fallback, and keep it in `choices`."""
        # Before the lookup: what is written while it reads is then noticed by the next launch.
        context = self._context(launch.device)
        revision = self._resolver.revision(context)
        if renewed := choices.renew_fallback(launch.key, revision):
            return renewed
        if self._notice_changed_code():  # so the kernel has another context, and no choices
            choices, context = self._choices, self._context(launch.device)
            revision = self._resolver.revision(context)
        request = self._request_of(launch, context)
        request.refuse_conflicts()
        try:
            resolution = self._resolve_and_report(request, choices.fallback(launch.key))
        except OtherCodeError as error:
            self._leave_record_of_other_code(request, error.code)
            return self._look_up_choice(launch, self._choices)
        await_digest()
        chosen = choices.add(launch.key, resolution, revision)
        # If they were forgotten meanwhile, the record has changed since it was read.
        return chosen if choices is self._choices else chosen._replace(until=0.0)

    def _leave_record_of_other_code(self, request: Request, code: str) -> None:
        name = self._name
        warn_once(
            f"code {name}",
            f"{name}{request.scenario}: Triton generates other code than was recorded under this "
            "key, by something that is not in the kernel's text; it is kept apart from now on",
        )
        self.take_other_code(code)

    def _resolve_and_report(self, request: Request, fallback: ChosenConfig | None) -> Resolution:
        """Resolve a request; `fallback` is what earlier launches of the scenario ran, or None."""
        start = time.perf_counter()
        # A launch waits for another process's tune once; after that it only looks the record up.
        wait = 0.0 if fallback else current_settings().tune_wait
        resolution, benchmarked = self._resolve(request, wait)
        if benchmarked:
            self.benchmarked += benchmarked
            self.bench_time = time.perf_counter() - start
            values = resolution.config.all_kwargs()
            self.pre_hook({**request.autotuner.nargs, **request.kwargs, **values}, reset_only=True)
        if resolution.is_idle:
            return resolution
        if resolution.uncompared:
            self._accept_default(resolution)
        before = fallback.resolution if fallback else None
        seconds = time.perf_counter() - start
        resolver = self._resolver_of(request)
        emit(ConfigChosen(self, resolver, request, resolution, benchmarked, seconds, before))
        return resolution

    def _accept_default(self, resolution: Resolution) -> None:
        """Say once why a launch runs the default config, though it might be tuned."""
        warn_once(
            f"uncompared {self._name}",
            f"{self._name}{resolution.scenario}: the default config runs, since no other one's "
            f"results can be compared with its: {resolution.uncompared}; declare what holds "
            "results, check=CheckOptions(outputs=[…]), or have configs win by their times alone, "
            "check=False",
        )

    def _resolve(self, request: Request, wait: float) -> tuple[Resolution, int]:
        """Return the resolution of a request, and how many configs were benchmarked for it."""
        resolver = self._resolver_of(request)
        if request.has_no_choice:
            return resolver.only_config(request), 0
        if self._consensus == "none" or request.not_stored or request.has_empty_grid:
            return resolver.resolve(request, wait=wait)

        def resolve_now() -> Resolution:
            tuning = self.mode is Mode.TUNE
            return resolver.explain(request) if tuning else resolver.resolve(request, wait=0.0)[0]

        return agree(request, lambda: resolver.resolve(request, wait=wait), resolve_now, wait)
