"""Keep the configs that an autotuner has chosen for its launches, until it chooses anew.

`Autotuner.cache` of Triton, with the entries of the program told from those of this package.

Launches while a process serves: a compiled config stands in for one that is not.
"""

from __future__ import annotations

import functools
import math
import time
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from ..model.resolution import Resolution
from ..model.scenario import Scenario
from ..model.selection import distance
from ..system.fork_lock import ForkLock
from ..system.notices import logger
from ..triton_internals.hooks import refusing_compilation
from ..triton_internals.identity import jit_function
from ..triton_internals.scenario_key import RawKey
from .service_phase import is_serving, note_compilation

__all__ = [
    "MOST_CHOICES",
    "CacheUser",
    "Choices",
    "ChosenConfig",
    "CompiledConfigs",
    "ConfigCache",
]


RETRY_AFTER = 5.0
"""Seconds until a scenario that fell back is looked up again."""

MOST_IDLE = 8
"""Launches of a scenario without work in a row, each of which tries to tune; later ones wait."""

MOST_CHOICES = 1 << 16
"""Launches whose config is kept; a program with ever new sizes looks the others up again."""


class ChosenConfig(NamedTuple):
    """Config that a launch runs.

    Attributes:
        config: the `triton.Config`.
        options: its meta-parameters and compiler options.
        until: time on the monotonic clock when it is to be chosen again; 0 means at each launch.
        resolution: how it was found, if there was a choice.
    """

    config: Any
    options: Mapping[str, Any]
    until: float = math.inf
    resolution: Resolution | None = None

    @classmethod
    def of(cls, config: Any, until: float = math.inf) -> ChosenConfig:
        """Choose a `triton.Config` without asking for records."""
        return cls(config, config.all_kwargs(), until)

    @property
    def is_final(self) -> bool:
        """Whether a later lookup cannot find better."""
        return self.resolution is None or self.resolution.final


class Choices:
    """Configs that were found for launches, by raw key; fallbacks are looked up again."""

    def __init__(self) -> None:
        """Begin without any."""
        self._final: dict[RawKey, ChosenConfig] = {}
        self._fallbacks: dict[RawKey, ChosenConfig] = {}
        self._revisions: dict[RawKey, Hashable | None] = {}
        self._idle: dict[RawKey, int] = {}

    def final(self, key: RawKey) -> ChosenConfig | None:
        """Return the config of a launch if no later lookup can find better, or None."""
        return self._final.get(key)

    def fallback(self, key: RawKey) -> ChosenConfig | None:
        """Return the fallback that the last lookup for a launch found, or None."""
        return self._fallbacks.get(key)

    def current(self, key: RawKey) -> ChosenConfig | None:
        """Return the config of a launch that needs no lookup now, or None."""
        fallback = self._fallbacks.get(key)
        if fallback is not None and time.monotonic() >= fallback.until:
            fallback = None
        return self._final.get(key) or fallback

    def renew_fallback(self, key: RawKey, revision: Hashable | None) -> ChosenConfig | None:
        """Return a fallback, for another while, if the records are as they were when it was found.

        Args:
            key: the launch's raw key.
            revision: the present revision of the records, or None if it is unknown.
        """
        fallback = self._fallbacks.get(key)
        if fallback is None or revision is None or revision != self._revisions.get(key):
            return None
        renewed = fallback._replace(until=time.monotonic() + RETRY_AFTER)
        self._fallbacks[key] = renewed
        return renewed

    def add(self, key: RawKey, resolution: Resolution, revision: Hashable | None) -> ChosenConfig:
        """Keep what a lookup found for a launch.

        Args:
            key: the launch's raw key.
            resolution: what was found.
            revision: the revision of the records before the lookup, or None if it is unknown.
        """
        if len(self._final) + len(self._fallbacks) >= MOST_CHOICES:
            for choices in (self._final, self._fallbacks, self._revisions, self._idle):
                choices.clear()
        until = math.inf if resolution.final else time.monotonic() + RETRY_AFTER
        config = resolution.config
        if resolution.is_idle and self._is_news(key):
            return ChosenConfig.of(config, until=0.0)._replace(resolution=resolution)
        chosen = ChosenConfig(config, config.all_kwargs(), until, resolution)
        if resolution.final:
            self._fallbacks.pop(key, None)
            self._final[key] = chosen
        else:
            self._revisions[key] = revision
            self._fallbacks[key] = chosen
        return chosen

    def _is_news(self, key: RawKey) -> bool:
        """Count a launch without work; return whether the next one may have some."""
        self._idle[key] = self._idle.get(key, 0) + 1
        return self._idle[key] % MOST_IDLE != 0

    def drop(self, key: RawKey) -> None:
        """Look a launch up again: its config cannot run."""
        self._final.pop(key, None)
        self._fallbacks.pop(key, None)


MOST_REPORTED = 1 << 16
"""Entries of this package that are kept; its keys have sizes as they are, and not their buckets."""


class CacheUser(Protocol):
    """An autotuner, whose choices depend on a `ConfigCache`."""

    def forget_choices(self) -> None:
        """Drop the choices: the cache has changed."""


def _wrap_change(name: str) -> Any:
    method: Callable[..., Any] = getattr(dict, name)

    @functools.wraps(method)
    def change(self: ConfigCache, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        finally:
            self.after_change()

    return change


class ConfigCache(dict[Any, Any]):
    """Configs by Triton's key of a launch.

    Programs read the configs that an autotuner chose, and put their own there, which Triton obeys.
    So an entry decides a launch unless this package has written it to report its own choice. A
    change by the program makes the autotuners that use the cache forget their choices. A copy is a
    plain dictionary, all entries of which are the program's.

    Args:
        entries: the program's entries.
    """

    def __init__(self, entries: Mapping[Any, Any] | Iterable[tuple[Any, Any]] = ()) -> None:
        """Copy the entries."""
        super().__init__(entries)
        self._lock = ForkLock()  # of the two dictionaries together
        self._reported: dict[Any, Any] = {}
        self._users: weakref.WeakSet[Any] = weakref.WeakSet()

    __setitem__ = _wrap_change("__setitem__")
    __delitem__ = _wrap_change("__delitem__")
    __ior__ = _wrap_change("__ior__")
    clear = _wrap_change("clear")
    pop = _wrap_change("pop")
    popitem = _wrap_change("popitem")
    setdefault = _wrap_change("setdefault")
    update = _wrap_change("update")

    @property
    def has_choices(self) -> bool:
        """Whether the program has put a config here."""
        return len(self) > len(self._reported)

    def choice(self, key: Hashable) -> Any | None:
        """Return the config that the program has put here for a launch, or None."""
        return None if key in self._reported else self.get(key)

    def report(self, key: Hashable, config: Any) -> None:
        """Show the config that a launch runs, unless the program has chosen another one."""
        with self._lock:
            if key in self._reported or key not in self:
                if len(self._reported) >= MOST_REPORTED:
                    self._drop_reported()
                self._reported[key] = config
                super().__setitem__(key, config)

    def _drop_reported(self) -> None:
        """Leave only the program's entries, also if a signal handler launches or raises here."""
        while self._reported:
            key, config = self._reported.popitem()
            if self.get(key) is config:  # a thread may have just replaced it by the program's
                super().pop(key, None)

    def add_user(self, user: CacheUser) -> None:
        """Tell an autotuner about changes by the program, for as long as it lives."""
        self._users.add(user)

    def after_change(self) -> None:
        """Count replaced entries as the program's, and make the users choose anew."""
        with self._lock:
            self._reported = {
                key: config for key, config in self._reported.items() if self.get(key) is config
            }
        for user in list(self._users):
            user.forget_choices()

    def duplicate(self, copy_config: Callable[[Any], Any]) -> ConfigCache:
        """Return a cache of the same entries, with copies of the configs."""
        twin = ConfigCache({key: copy_config(config) for key, config in self.items()})
        twin._reported = {key: twin[key] for key in self._reported}
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as a plain dictionary."""
        return dict, (dict(self),)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Copy and pickle as a plain dictionary."""
        return self.__reduce__()


_MOST_SCENARIOS = 4096

_RETRY_AFTER = 5.0
"""Seconds until the config that a stand-in replaces is tried again: a warm-up may compile it."""


class CompiledConfigs:
    """Configs that an autotuner has launched, and thus compiled, by scenario.

    Args:
        kernel: the kernel's name, for the log.
    """

    def __init__(self, kernel: str) -> None:
        """Begin with none."""
        self._kernel = kernel
        self._launched: dict[Scenario, Any] = {}

    def launch(
        self,
        autotuner: Any,
        chosen: ChosenConfig,
        launch: Callable[[ChosenConfig], Any],
        usable: Callable[[], Sequence[Any]],
        *,
        may_compile: bool,
    ) -> tuple[Any, ChosenConfig]:
        """Launch the chosen config, or while the process serves one whose kernel is in memory.

        Args:
            autotuner: the `CachedAutotuner` that launches.
            chosen: the config that the launch should run.
            launch: launches a config.
            usable: returns the configs that the launch may run.
            may_compile: whether the chosen config is launched in any case.

        Returns:
            What `launch` returned, and the config. If no usable kernel is in memory, the chosen
            config is compiled after all.
        """
        if not may_compile and is_serving():
            launched = self._launch_from_memory(autotuner, chosen, launch, usable)
            if launched is not None:
                return launched
            note_compilation(self._kernel)
        result = launch(chosen)
        if chosen.resolution is not None:
            scenario = chosen.resolution.scenario
            if scenario in self._launched or len(self._launched) < _MOST_SCENARIOS:
                self._launched[scenario] = chosen.config
        return result, chosen

    def _launch_from_memory(
        self,
        autotuner: Any,
        chosen: ChosenConfig,
        launch: Callable[[ChosenConfig], Any],
        usable: Callable[[], Sequence[Any]],
    ) -> tuple[Any, ChosenConfig] | None:
        with refusing_compilation(jit_function(autotuner)) as refused:
            result = launch(chosen)
            if not refused.count:
                return result, chosen
            for config in self._nearest_first(chosen, usable):
                until = time.monotonic() + _RETRY_AFTER
                stand_in = chosen._replace(config=config, options=config.all_kwargs(), until=until)
                refused.count = 0
                result = launch(stand_in)
                if not refused.count:
                    logger.info("%s: (%s) stands in for (%s)", self._kernel, config, chosen.config)
                    return result, stand_in
        return None

    def _nearest_first(
        self, chosen: ChosenConfig, usable: Callable[[], Sequence[Any]]
    ) -> Sequence[Any]:
        """Return the usable configs that were launched, those of the nearest scenarios first."""
        launched = dict(self._launched)
        if chosen.resolution is None or not launched:
            return []
        scenario = chosen.resolution.scenario
        nearest = sorted(launched, key=lambda other: distance(scenario, other))
        allowed = {id(config) for config in usable()}
        distinct = {id(launched[other]): launched[other] for other in nearest}
        return [
            config
            for identity, config in distinct.items()
            if identity in allowed and config is not chosen.config
        ]
