"""What launches run: the configs that an autotuner has chosen, and those that a program has.

`Choices` keeps the former until the autotuner chooses anew. `ConfigCache` is the `cache` of
Triton's `Autotuner`, in which programs read and write.
"""

from __future__ import annotations

import functools
import math
import time
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, NamedTuple

from ..model.resolution import Resolution
from ..system.fork_lock import ForkLock
from ..triton_internals.scenario_key import RawKey

__all__ = ["MOST_CHOICES", "Choices", "ChosenConfig", "ConfigCache"]

RETRY_AFTER = 5.0
"""Seconds until a scenario that fell back is looked up again."""

MOST_IDLE = 8
"""Launches of a scenario without work in a row, each of which tries to tune; later ones wait."""

MOST_CHOICES = 1 << 16
"""Launches whose config is kept; a program with ever new sizes looks the others up again."""

MOST_REPORTED = 1 << 16
"""Entries of this package in a `ConfigCache`; its keys have sizes as they are, not buckets."""


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
    def of(
        cls, config: Any, until: float = math.inf, resolution: Resolution | None = None
    ) -> ChosenConfig:
        """Choose a `triton.Config` as it is now."""
        return cls(config, config.all_kwargs(), until, resolution)

    @property
    def is_final(self) -> bool:
        """Whether a later lookup cannot find better."""
        return self.resolution is None or self.resolution.final


class _Kept(NamedTuple):
    """A choice, and the revision of the records before it was made, or None if it is unknown."""

    chosen: ChosenConfig
    revision: Hashable | None


class Choices:
    """Configs that were found for launches, by raw key; fallbacks are looked up again."""

    def __init__(self) -> None:
        """Begin without any."""
        self._kept: dict[RawKey, _Kept] = {}
        self._idle: dict[RawKey, int] = {}

    def __len__(self) -> int:
        """Return for how many launches a config is kept."""
        return len(self._kept)

    def last(self, key: RawKey) -> ChosenConfig | None:
        """Return what the last lookup for a launch found, or None."""
        kept = self._kept.get(key)
        return None if kept is None else kept.chosen

    def current(self, key: RawKey) -> ChosenConfig | None:
        """Return the config of a launch that needs no lookup now, or None."""
        kept = self._kept.get(key)
        if kept is None or kept.chosen.until <= time.monotonic():
            return None
        return kept.chosen

    def renew_fallback(self, key: RawKey, revision: Hashable | None) -> ChosenConfig | None:
        """Return a fallback, for another while, if the records are as they were when it was found.

        Args:
            key: the launch's raw key.
            revision: the present revision of the records, or None if it is unknown.
        """
        kept = self._kept.get(key)
        if kept is None or revision is None or revision != kept.revision or kept.chosen.is_final:
            return None
        renewed = kept.chosen._replace(until=time.monotonic() + RETRY_AFTER)
        self._kept[key] = _Kept(renewed, revision)
        return renewed

    def add(self, key: RawKey, resolution: Resolution, revision: Hashable | None) -> ChosenConfig:
        """Keep what a lookup found for a launch.

        Args:
            key: the launch's raw key.
            resolution: what was found.
            revision: the revision of the records before the lookup, or None if it is unknown.
        """
        if len(self._kept) >= MOST_CHOICES:
            self._kept.clear()
            self._idle.clear()
        if resolution.is_idle and self._is_news(key):
            return ChosenConfig.of(resolution.config, 0.0, resolution)
        until = math.inf if resolution.final else time.monotonic() + RETRY_AFTER
        chosen = ChosenConfig.of(resolution.config, until, resolution)
        self._kept[key] = _Kept(chosen, revision)
        return chosen

    def _is_news(self, key: RawKey) -> bool:
        """Count a launch without work; return whether the next one may have some."""
        self._idle[key] = self._idle.get(key, 0) + 1
        return self._idle[key] % MOST_IDLE != 0

    def drop(self, key: RawKey) -> None:
        """Look a launch up again: its config cannot run."""
        self._kept.pop(key, None)


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

    def add_user(self, user: Any) -> None:
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
