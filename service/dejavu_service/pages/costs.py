"""Costs of configs: how much slower than the best every config is, over the scenarios."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dejavu_cache.model.scenario import Config

__all__ = ["ConfigCost", "config_costs", "spread_evenly"]

_CLOSE = 1.05
"""Multiple of the best median up to which a config counts as close to it."""


class ConfigCost(NamedTuple):
    """A config over the scenarios in which it was measured.

    Attributes:
        config: The config.
        measured: The number of scenarios in which it was measured.
        failed: In how many of them it failed.
        best: In how many of them it has the smallest median.
        close: In how many of them it is at most 5% slower than the best.
        mean: The geometric mean of its time over the best one.
        worst: The largest ratio.
    """

    config: Config
    measured: int
    failed: int
    best: int
    close: int
    mean: float | None
    worst: float | None


@dataclass
class _Tally:
    ratios: list[float] = field(default_factory=list)
    failed: int = 0


def spread_evenly(items: Sequence[str], most: int) -> list[str]:
    """Return at most so many items, evenly spread over all."""
    step = max(-(-len(items) // most), 1)
    return list(items[::step])


def config_costs(texts: Iterable[str]) -> list[ConfigCost]:
    """Compare all configs over records, given as JSON; the cheapest to have everywhere first."""
    tallies: dict[str, _Tally] = {}
    configs: dict[str, Any] = {}
    for text in texts:
        _count(json.loads(text)["measurements"], tallies, configs)
    costs = [_cost(Config.model_validate(configs[key]), tally) for key, tally in tallies.items()]
    return sorted(costs, key=lambda cost: (-(cost.measured - cost.failed), cost.mean or math.inf))


def _count(
    measured: Sequence[Mapping[str, Any]], tallies: dict[str, _Tally], configs: dict[str, Any]
) -> None:
    best = min((item["median"] for item in measured if item.get("median")), default=None)
    for item in measured:
        config = item["config"]
        key = f"{config.get('params')}{config.get('options')}"
        configs.setdefault(key, config)
        tally = tallies.setdefault(key, _Tally())
        median = item.get("median")
        if median and best:
            tally.ratios.append(median / best)
        elif median is None:
            tally.failed += 1


def _cost(config: Config, tally: _Tally) -> ConfigCost:
    ratios = tally.ratios
    mean = math.exp(math.fsum(map(math.log, ratios)) / len(ratios)) if ratios else None
    return ConfigCost(
        config=config,
        measured=len(ratios) + tally.failed,
        failed=tally.failed,
        best=sum(ratio == 1 for ratio in ratios),
        close=sum(ratio <= _CLOSE for ratio in ratios),
        mean=mean,
        worst=max(ratios, default=None),
    )
