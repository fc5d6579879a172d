"""What launches run: the configs that an autotuner has chosen, and those that a program has.

`Choices` keeps the former until the autotuner chooses anew. `ConfigCache` is the `cache` of
Triton's `Autotuner`, in which programs read and write.
"""

from __future__ import annotations

import math
import time
import weakref
from collections import Counter, UserDict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

from ..triton_internals.scenario_key import RawKey
from .request import Resolution

RETRY_AFTER = 5.0
"""Seconds until a scenario that fell back is looked up again, at first."""

LONGEST_RETRY = 60.0
"""The most seconds until then; each time in a row takes twice as long as the one before."""

MOST_IDLE = 8
"""Launches of a scenario without work in a row, each of which tries to tune; later ones wait."""

MOST_CHOICES = 1 << 16
"""Launches whose config is kept; a program with ever new sizes looks the others up again."""


class ChosenConfig(NamedTuple):
    """Config that a launch runs.

    Attributes:
        config: the `triton.Config`.
        options: its meta-parameters and compiler options.
        launches: counts, by `next`, the launches that run it.
        until: time on the monotonic clock when it is to be chosen again; 0 means at each launch.
        resolution: how it was found, if there was a choice.
    """

    config: Any
    options: Mapping[str, Any]
    launches: Iterator[int]
    until: float = math.inf
    resolution: Resolution | None = None

    @classmethod
    def of(
        cls,
        config: Any,
        until: float = math.inf,
        resolution: Resolution | None = None,
        launches: Iterator[int] | None = None,
    ) -> ChosenConfig:
        """Choose a `triton.Config` as it is now."""
        return cls(config, config.all_kwargs(), launches or count(1), until, resolution)


@dataclass(eq=False)
class Choices:
    """Configs that were found for launches; fallbacks are looked up again.

    Attributes:
        kept: what the last lookup for a launch found, by raw key, be it to be looked up anew.
    """

    kept: dict[RawKey, ChosenConfig] = field(default_factory=dict)
    _waits: dict[RawKey, float] = field(default_factory=dict, init=False)
    _idle: Counter[RawKey] = field(default_factory=Counter, init=False)

    def add(self, key: RawKey, resolution: Resolution, launches: Iterator[int]) -> ChosenConfig:
        """Keep what a lookup found for a launch, and the counter of the launches that run it."""
        if max(len(self.kept), len(self._idle)) >= MOST_CHOICES:
            for kept in (self.kept, self._waits, self._idle):
                kept.clear()
        if resolution.is_idle:
            self._idle[key] += 1
            if self._idle[key] % MOST_IDLE:
                return ChosenConfig.of(resolution.config, 0.0, resolution)
        until = math.inf
        if not resolution.final:
            wait = min(2 * self._waits[key], LONGEST_RETRY) if key in self._waits else RETRY_AFTER
            self._waits[key] = wait
            until = time.monotonic() + wait
        chosen = ChosenConfig.of(resolution.config, until, resolution, launches)
        self.kept[key] = chosen
        return chosen


def launch_key(autotuner: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return a launch's key in `Autotuner.cache`, as `Autotuner.run` makes it."""
    names = autotuner.arg_names
    named = {**dict(zip(names, args, strict=False)), **kwargs}
    key = []
    for name in autotuner.keys:
        if name in named and name in names:
            key.append(named[name])
    for name, value in named.items():
        if name in names and hasattr(value, "dtype"):
            key.append(str(value.dtype))
    return tuple(key)


class ConfigCache(UserDict[Any, Any]):
    """Configs by Triton's key of a launch.

    Programs read the configs that an autotuner chose, and put their own there, which Triton obeys.
    So an entry decides a launch unless this package has written it to report its own choice. A
    change by the program makes the autotuners that use the cache forget their choices.

    Attributes:
        users: the autotuners that use the cache.
    """

    def __init__(self, entries: Mapping[Any, Any] | None = None) -> None:
        """Copy the entries."""
        self.data = dict(entries or {})
        self._reported: set[Hashable] = set()
        self.users: weakref.WeakSet[Any] = weakref.WeakSet()

    @property
    def has_choices(self) -> bool:
        """Whether the program has put a config here."""
        return len(self.data) > len(self._reported)

    def choice(self, key: Hashable) -> Any | None:
        """Return the config that the program has put here for a launch, or None."""
        return None if key in self._reported else self.data.get(key)

    def report(self, key: Hashable, config: Any) -> None:
        """Show the config that a launch runs, unless the program has chosen another one."""
        if key in self._reported or key not in self.data:
            self._reported.add(key)
            self.data[key] = config

    def __setitem__(self, key: Hashable, config: Any) -> None:
        """Have the launches of a key run a config."""
        self.data[key] = config
        self._forget(key)

    def __delitem__(self, key: Hashable) -> None:
        """Have the launches of a key choose anew."""
        del self.data[key]
        self._forget(key)

    def __ior__(self, entries: Mapping[Any, Any]) -> ConfigCache:  # type: ignore[override, misc]
        """Have the launches of several keys run configs."""
        self.update(entries)
        return self

    def _forget(self, key: Hashable) -> None:
        self._reported.discard(key)
        for user in list(self.users):
            user.forget_choices()

    def copy(self) -> dict[Any, Any]:  # type: ignore[override]
        """Return a plain dictionary, all entries of which are the program's."""
        return dict(self.data)

    __copy__ = copy  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a plain dictionary."""
        return dict, (self.data,)
