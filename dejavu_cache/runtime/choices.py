"""Keep the configs that an autotuner has chosen for its launches, until it chooses anew."""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

from ..model.resolution import Resolution
from ..triton_internals.scenario_key import RawKey
from .request import Request

__all__ = ["MOST_CHOICES", "Choices", "ChosenConfig", "NewChoice"]

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


class NewChoice(NamedTuple):
    """How a launch came by its config.

    Attributes:
        request: the launch's scenario.
        resolution: the config that it runs.
        benchmarked: the number of configs that were benchmarked for it.
        seconds: how long that took.
        before: the fallback that earlier launches of the scenario ran, or None.
    """

    request: Request
    resolution: Resolution
    benchmarked: int
    seconds: float
    before: Resolution | None

    @property
    def kernel(self) -> str:
        """The kernel's name."""
        return self.request.context.kernel.name


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
