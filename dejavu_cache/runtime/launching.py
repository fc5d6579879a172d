"""How an autotuner launches a kernel whose compiled binary the hot path does not know.

A recorded config that cannot run here gives way to another one. While the process serves requests,
a compiled config stands in for one that is not. What the cache cannot do, Triton does.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import DejavuError, NoValidConfigError, ScenarioNotTuned, SnapshotError
from ..model.selection import distance
from ..settings import Mode
from ..system.background_threads import is_from_signal_handler
from ..system.notices import logger, warn_once
from ..triton_internals.cache_managers import launch_key
from ..triton_internals.config_names import DeclaredConfigs, describe
from ..triton_internals.environment import begin_digest, toolchain_on
from ..triton_internals.hooks import foreign_run, refusing_compilation
from ..triton_internals.identity import jit_function
from ..triton_internals.upstream import Autotuner
from ..tuning.compile_ahead import BEFORE_LAUNCH
from .choices import ChosenConfig
from .choosing import choose, reject, resolver_of
from .declaration import default_config
from .service_phase import is_serving, may_benchmark, note_compilation

if TYPE_CHECKING:
    from .autotuner import CachedAutotuner

__all__ = ["is_left_to_triton", "launch"]

_MOST_COMPILED = 4096
"""Scenarios of which it is known what was launched for them."""

_RETRY_AFTER = 5.0
"""Seconds until the config that a stand-in replaces is tried again: a warm-up may compile it."""


def launch(
    autotuner: CachedAutotuner, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ChosenConfig]:
    """Launch through Triton; return its result and the config that was chosen."""
    autotuner._notice_changes_in_place()
    if autotuner._is_left_to_triton:
        result = _run_by_triton(autotuner, args, kwargs)
        return result, ChosenConfig.of(autotuner.best_config, until=0.0)
    # A program's hooks may read the arguments.
    autotuner.nargs = dict(zip(autotuner.arg_names, args, strict=False))
    try:
        return _run_recorded(autotuner, args, kwargs)
    finally:
        autotuner.nargs = None


def _run_recorded(
    autotuner: CachedAutotuner, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ChosenConfig]:
    """Launch by a record or a tune."""
    failure: NoValidConfigError | None = None
    try:
        chosen = choose(autotuner, args, kwargs)
    except Exception as error:
        reason = error
        if not _may_try_triton(autotuner, error):
            if not isinstance(error, NoValidConfigError):
                raise
            failure = error
    else:
        return _launch_or_choose_again(autotuner, chosen, args, kwargs)
    # Here, since what is raised next has no other error as its context, as with Triton alone.
    if failure is not None:
        return _run_default(autotuner, failure, args, kwargs)
    # Where the kernel or its hooks are at fault, this raises what Triton raises. Otherwise it
    # leaves a config in `cache`, which later launches obey.
    result = _run_by_triton(autotuner, args, kwargs)
    _warn_of_triton(autotuner, reason)
    return result, ChosenConfig.of(autotuner.best_config, until=0.0)


def _run_default(
    autotuner: CachedAutotuner,
    failure: NoValidConfigError,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[Any, ChosenConfig]:
    """Launch the default config where none has a usable timing.

    It raises what the compiler says of the kernel, as with Triton alone.
    """
    default = ChosenConfig.of(_default_of(autotuner, args, kwargs), until=0.0)
    if not failure.reasons.get(str(describe(default.config)), "").startswith(BEFORE_LAUNCH):
        raise failure
    warn_once(f"failures {autotuner._name}", str(failure))
    return _run_config(autotuner, default, args, kwargs), default


def _launch_or_choose_again(
    autotuner: CachedAutotuner,
    chosen: ChosenConfig,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[Any, ChosenConfig]:
    """Launch a config; if it is a recorded one that cannot run here, choose another."""
    try:
        return launch_chosen(autotuner, chosen, args, kwargs)
    except Exception as error:
        if not reject(autotuner, chosen, error, args, kwargs):
            raise
    return _run_recorded(autotuner, args, kwargs)


def launch_chosen(
    autotuner: CachedAutotuner,
    chosen: ChosenConfig,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[Any, ChosenConfig]:
    """Launch the chosen config, or a compiled one while the process serves; return both."""
    options = chosen.config.all_kwargs()
    if chosen.options != options:  # a program has changed the config in place
        chosen = chosen._replace(options=options)
    if is_serving() and not _must_compile(autotuner):
        launched = _launch_compiled(autotuner, chosen, args, kwargs)
        if launched is not None:
            return launched
        note_compilation(autotuner._name)
    result = _run_config(autotuner, chosen, args, kwargs)
    if chosen.resolution is not None:
        scenario, compiled = chosen.resolution.scenario, autotuner._compiled
        if scenario in compiled or len(compiled) < _MOST_COMPILED:
            compiled[scenario] = chosen.config
    return result, chosen


def _must_compile(autotuner: CachedAutotuner) -> bool:
    """Return whether a launch runs the chosen config in any case.

    Ranks that choose together must not differ by what each of them has compiled.
    """
    if autotuner._interpreted:
        return True
    return not autotuner._is_left_to_triton and autotuner._declaration.consensus != "none"


def _launch_compiled(
    autotuner: CachedAutotuner,
    chosen: ChosenConfig,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[Any, ChosenConfig] | None:
    """Launch the chosen config or one that stands in for it, if its kernel is in memory."""
    with refusing_compilation(jit_function(autotuner)) as refused:
        result = _run_config(autotuner, chosen, args, kwargs)
        if not refused.count:
            return result, chosen
        for config in _stand_ins(autotuner, chosen, args, kwargs):
            until = time.monotonic() + _RETRY_AFTER
            stand_in = ChosenConfig.of(config, until, chosen.resolution)
            refused.count = 0
            result = _run_config(autotuner, stand_in, args, kwargs)
            if not refused.count:
                logger.info("%s: (%s) stands in for (%s)", autotuner._name, config, chosen.config)
                return result, stand_in
    return None


def _stand_ins(
    autotuner: CachedAutotuner,
    chosen: ChosenConfig,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> list[Any]:
    """Return the launched configs that a launch may run, those of the nearest scenarios first."""
    launched = dict(autotuner._compiled)
    if chosen.resolution is None or not launched:
        return []
    scenario = chosen.resolution.scenario
    nearest = sorted(launched, key=lambda other: distance(scenario, other))
    distinct = {id(launched[other]): launched[other] for other in nearest}
    request = autotuner.request(*args, **kwargs)
    usable = {id(config) for config in resolver_of(autotuner, request).usable_configs(request)}
    return [
        config
        for identity, config in distinct.items()
        if identity in usable and config is not chosen.config
    ]


def _run_config(
    autotuner: CachedAutotuner,
    chosen: ChosenConfig,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    autotuner.best_config = config = chosen.config
    if config.pre_hook is not None:
        named = dict(zip(autotuner.arg_names, args, strict=False))
        config.pre_hook({**named, **kwargs, **chosen.options})
    return autotuner.fn.run(*args, **kwargs, **chosen.options)


def _run_by_triton(
    autotuner: CachedAutotuner, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Have Triton tune and launch; while the process serves, launch without a tune."""
    is_tuned = len(autotuner.configs) < 2 or launch_key(autotuner, args, kwargs) in autotuner.cache
    if is_tuned or may_benchmark():
        return Autotuner.run(autotuner, *args, **kwargs)
    chosen = ChosenConfig.of(_default_of(autotuner, args, kwargs))
    return launch_chosen(autotuner, chosen, args, kwargs)[0]


def _default_of(autotuner: CachedAutotuner, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the default config of a launch, without a request to a store."""
    twin = autotuner._copy_with(args)
    declared = DeclaredConfigs(autotuner._name, twin.prune_configs(dict(kwargs)))
    return default_config(twin, autotuner._name, autotuner._options, kwargs, declared)


def is_left_to_triton(autotuner: CachedAutotuner) -> bool:
    """Return whether Triton tunes and launches a kernel, and nothing is looked up or recorded."""
    try:
        if autotuner.mode is Mode.OFF or not _is_on_known_device(autotuner):
            return True
        _ = autotuner._declaration  # what is wrong with it shows here
    except Exception as error:
        if not _may_try_triton(autotuner, error):
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


def _is_on_known_device(autotuner: CachedAutotuner) -> bool:
    """Return whether the device is one whose timings mean something elsewhere."""
    if not autotuner._interpreted and len(autotuner.configs) > 1:
        begin_digest()
    try:
        toolchain_on(autotuner._device())
    except Exception as error:
        if is_from_signal_handler(error):
            raise
        warn_once("device", f"kernels are tuned by Triton alone: {error}")
        return False
    return True


def _may_try_triton(autotuner: CachedAutotuner, error: Exception) -> bool:
    """Return whether an error of the cache leaves an adopted kernel to Triton."""
    if isinstance(error, (ScenarioNotTuned, SnapshotError)):  # who asks for these wants them
        return False
    return autotuner.is_adopted and not is_from_signal_handler(error)


def _warn_of_triton(autotuner: CachedAutotuner, error: Exception) -> None:
    name, kind = autotuner._name, type(error).__name__ + ": "
    reason = (str(error).splitlines() or [""])[0]
    text = reason if isinstance(error, DejavuError) else f"{kind}{reason}"
    warn_once(f"adopted {name}", f"{name} is tuned by Triton alone: {text}")
