"""How an autotuner chooses a launch's config: by records, by a tune, or as the program says.

`choose` asks, in this order, for the only config, for what the program has put into `cache`, for
what an earlier launch of the scenario found, and for a record. A miss is resolved by a tune or a
fallback, as the mode says.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import UncomparedResultsError
from ..model.resolution import Resolution
from ..model.scenario import Context, Scenario
from ..settings import current_settings
from ..stores import MemoryStore
from ..stores.urls import as_tiers
from ..system.notices import show_log, warn_once
from ..triton_internals.cache_managers import launch_key
from ..triton_internals.config_names import describe
from ..triton_internals.environment import await_digest
from ..triton_internals.scenario_key import RawKey
from ..tuning.compile_ahead import failure_of
from .activity_report import report_choice
from .choices import Choices, ChosenConfig, ConfigCache, NewChoice
from .consensus import agree
from .declaration import why_unnamed
from .request import Request
from .resolver import OtherCodeError, Resolver

if TYPE_CHECKING:
    from .autotuner import CachedAutotuner

__all__ = ["KeyedLaunch", "choose", "explain", "keyed_launch", "reject", "resolver_of"]


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


def keyed_launch(
    autotuner: CachedAutotuner, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> KeyedLaunch:
    """Return a launch with its key."""
    device = autotuner._device()
    key = autotuner._declaration.scenario_key.raw(device, args, kwargs)
    pruning = autotuner._pruning
    if pruning is None:
        return KeyedLaunch(key, device, None, args, kwargs)
    pruned = pruning.configs_for(device, args, kwargs)
    return KeyedLaunch((*key, pruned), device, pruned.configs, args, kwargs)


def choose(
    autotuner: CachedAutotuner, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> ChosenConfig:
    """Return the config that a launch runs."""
    if len(autotuner.configs) < 2:
        return ChosenConfig.of(autotuner.configs[0])
    cache = autotuner.cache
    is_ours = isinstance(cache, ConfigCache)
    if is_ours and not cache.has_choices:
        return choose_for_scenario(autotuner, args, kwargs)
    key = launch_key(autotuner, args, kwargs)
    config = cache.choice(key) if is_ours else _entry(cache, key)
    if config is not None:
        chosen = ChosenConfig.of(config)
    else:
        chosen = choose_for_scenario(autotuner, args, kwargs)
        if chosen.is_final and not is_ours:
            cache[key] = chosen.config
    # A program's own mapping may change unnoticed. A bucket holds launches of several of Triton's
    # keys, which may have other entries.
    is_kept = is_ours and not autotuner._declaration.has_buckets
    return chosen if is_kept else chosen._replace(until=0.0)


def _entry(cache: Any, key: Hashable) -> Any | None:
    """Return an entry of a mapping, or None; a program's own may have no `get`."""
    return cache[key] if key in cache else None  # noqa: SIM401


def choose_for_scenario(
    autotuner: CachedAutotuner, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> ChosenConfig:
    """Return what an earlier launch of the scenario found, or look it up."""
    # Before the key: pruning writes it in terms of configs, which may be assigned meanwhile.
    choices = autotuner._choices
    try:
        launch = keyed_launch(autotuner, args, kwargs)
        return choices.current(launch.key) or _look_up(autotuner, launch, choices)
    except TypeError:
        # Raises an error that names the key argument, if one of them is at fault.
        autotuner._declaration.scenario_key.scenario(args, kwargs)
        raise


def _look_up(autotuner: CachedAutotuner, launch: KeyedLaunch, choices: Choices) -> ChosenConfig:
    """Choose a launch's config by a record, a tune or a fallback, and keep it in `choices`."""
    # Before the lookup: what is written while it reads is then noticed by the next launch.
    context = autotuner._declaration.context(launch.device)
    revision = autotuner._resolver.revision(context)
    if renewed := choices.renew_fallback(launch.key, revision):
        return renewed
    if autotuner._notice_changed_code():  # so the kernel has another context, and no choices
        choices, context = autotuner._choices, autotuner._declaration.context(launch.device)
        revision = autotuner._resolver.revision(context)
    request = _request_of(autotuner, launch, context)
    request.refuse_conflicts()
    try:
        resolution = _resolve_and_report(autotuner, request, choices.last(launch.key))
    except OtherCodeError as error:
        warn_once(
            f"code {autotuner._name}",
            f"{autotuner._name}{request.scenario}: Triton generates other code than was recorded "
            "under this key, by something that is not in the kernel's text; it is kept apart from "
            "now on",
        )
        autotuner._declare(error.code)
        return _look_up(autotuner, launch, autotuner._choices)
    await_digest()
    chosen = choices.add(launch.key, resolution, revision)
    # If they were forgotten meanwhile, the record has changed since it was read.
    return chosen if choices is autotuner._choices else chosen._replace(until=0.0)


def _request_of(
    autotuner: CachedAutotuner, launch: KeyedLaunch, context: Context | None = None
) -> Request:
    twin = autotuner._copy_with(launch.args)
    return autotuner._declaration.request(
        twin, launch.device, launch.args, launch.kwargs, launch.configs, context
    )


def _resolve_and_report(
    autotuner: CachedAutotuner, request: Request, fallback: ChosenConfig | None
) -> Resolution:
    """Resolve a request; `fallback` is what earlier launches of the scenario ran, or None."""
    start = time.perf_counter()
    # A launch waits for another process's tune once; after that it only looks the record up.
    wait = 0.0 if fallback else current_settings().tune_wait
    resolution, benchmarked = _resolve(autotuner, request, wait)
    if benchmarked:
        autotuner.benchmarked += benchmarked
        autotuner.bench_time = time.perf_counter() - start
        arguments = {
            **request.autotuner.nargs,
            **request.kwargs,
            **resolution.config.all_kwargs(),
        }
        autotuner.pre_hook(arguments, reset_only=True)
    if resolution.is_idle:
        return resolution
    if resolution.uncompared:
        _accept_default(autotuner, resolution)
    before = fallback.resolution if fallback else None
    choice = NewChoice(request, resolution, benchmarked, time.perf_counter() - start, before)
    report_choice(autotuner, choice, resolver_of(autotuner, request))
    return resolution


def _accept_default(autotuner: CachedAutotuner, resolution: Resolution) -> None:
    """Say once why a launch runs the default config, though it might be tuned.

    Raises:
        UncomparedResultsError: the kernel is adopted, and Triton compares no results.
    """
    if autotuner.is_adopted:
        raise UncomparedResultsError(f"no results can be compared: {resolution.uncompared}")
    warn_once(
        f"uncompared {autotuner._name}",
        f"{autotuner._name}{resolution.scenario}: the default config runs, since no other one's "
        f"results can be compared with its: {resolution.uncompared}; declare what holds results, "
        "check=CheckOptions(outputs=[…]), or have configs win by their times alone, check=False",
    )


def _resolve(autotuner: CachedAutotuner, request: Request, wait: float) -> tuple[Resolution, int]:
    """Return the resolution of a request, and how many configs were benchmarked for it."""
    resolver = resolver_of(autotuner, request)
    if request.has_no_choice:
        return resolver.only_config(request), 0
    is_alone = autotuner._declaration.consensus == "none" or request.not_stored
    if is_alone or request.has_empty_grid:
        return resolver.resolve(request, wait=wait)
    return agree(request, resolver, wait)


def resolver_of(autotuner: CachedAutotuner, request: Request) -> Resolver:
    """Return the resolver of a request, whose timings are stored or stay in this process."""
    return resolver_for(autotuner, is_stored=not request.not_stored)


def resolver_for(autotuner: CachedAutotuner, *, is_stored: bool) -> Resolver:
    """Return the resolver of the launches whose timings are stored, or of those that are not."""
    resolvers = autotuner._resolvers
    if is_stored in resolvers:
        return resolvers[is_stored]
    settings, options = current_settings(), autotuner._options
    show_log(settings.log)
    tiers = as_tiers(options.get("store") if is_stored else MemoryStore())
    if autotuner._declaration.consensus == "none":  # else no rank changes its choice alone
        tiers.keep_copies_right(autotuner._note_change)
    max_distance = options.get("max_distance", settings.max_distance)
    resolver = Resolver(tiers, autotuner.mode, max_distance, settings, compares_code=True)
    return resolvers.setdefault(is_stored, resolver)


def reject(
    autotuner: CachedAutotuner,
    chosen: ChosenConfig,
    error: Exception,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> bool:
    """Leave out a recorded config that cannot run here; return whether another one is left.

    Compiling and loading a kernel fail before it runs, so the launch can be tried again. Ranks that
    choose together would not notice that one of them chose again.
    """
    failure = failure_of(error)
    if failure is None or failure.kind == "skipped" or autotuner._declaration.consensus != "none":
        return False
    if chosen.resolution is None or not isinstance(autotuner.cache, ConfigCache):
        return False
    launch = keyed_launch(autotuner, args, kwargs)
    request = _request_of(autotuner, launch)
    config = describe(chosen.config)
    if not resolver_of(autotuner, request).reject(request, config, failure.reason):
        return False
    autotuner._choices.drop(launch.key)
    return True


def explain(
    autotuner: CachedAutotuner, args: Sequence[Any], kwargs: Mapping[str, Any], *, is_kept: bool
) -> tuple[Request | None, Resolution]:
    """Return a launch's request, if one would be made, and what the launch would run.

    Args:
        autotuner: the kernel's.
        args: the launch's positional arguments.
        kwargs: its keyword arguments.
        is_kept: whether what an earlier launch has found counts in any case; what ranks have
            agreed on always does.
    """
    autotuner._notice_changes_in_place()
    if autotuner._is_left_to_triton:
        return None, _explain_off(autotuner, args, kwargs)
    autotuner._notice_changed_code()
    launch = keyed_launch(autotuner, args, kwargs)
    request = _request_of(autotuner, launch)
    if is_kept or autotuner._declaration.consensus != "none":
        chosen = autotuner._choices.last(launch.key)
        if chosen is not None and chosen.is_final and chosen.resolution is not None:
            return request, chosen.resolution
    return request, resolver_of(autotuner, request).explain(request)


def _explain_off(
    autotuner: CachedAutotuner, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Resolution:
    """Return what Triton's own autotuner runs; without a config until it has benchmarked."""
    key, unnamed = launch_key(autotuner, args, kwargs), why_unnamed(autotuner.arg_names)
    only = autotuner.configs[0] if len(autotuner.configs) == 1 else None
    cache = autotuner.cache
    return Resolution(
        "off",
        _entry(cache, key) or only,
        Scenario() if unnamed else autotuner._declaration.scenario_key.scenario(args, kwargs),
        autotuner.context,
        not_stored=unnamed,
    )
