"""Find the recorded scenarios near a requested one without reading their records."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from .scenario import Scenario
from .selection import value_distance

__all__ = ["ScenarioIndex"]

_Values = Mapping[str, Any]


class ScenarioIndex:
    """The recorded scenarios of one context.

    They are held as plain dictionaries, since thousands of models would take as long to make as
    their records, and grouped by all that must be equal for a distance to be finite.

    Args:
        texts: the scenarios as JSON, in the form of `Scenario.text`.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        """Parse and group the scenarios."""
        self._groups: dict[Any, list[tuple[_Values, str]]] = {}
        scenarios = list(texts)
        for parsed, text in zip(json.loads(f"[{','.join(scenarios)}]"), scenarios, strict=True):
            args = parsed.get("args", {})
            group = self._groups.setdefault(_group(args, parsed.get("dtypes", {})), [])
            group.append((args, text))

    def near(
        self,
        scenario: Scenario,
        *,
        exact: Collection[str] = (),
        max_distance: float = math.inf,
    ) -> list[tuple[float, str]]:
        """Return the distances and texts of the scenarios within a cap, the nearest first.

        Args:
            scenario: the requested scenario.
            exact: key arguments that must be equal though they are numbers.
            max_distance: in powers of two, summed over the key arguments.
        """
        wanted = list(scenario.args.items())
        gaps: dict[tuple[str, type, Any], float] = {}  # few values, in many combinations
        near = []
        for args, text in self._groups.get(_group(scenario.args, scenario.dtypes), ()):
            total = 0.0
            for name, value in wanted:
                recorded = args[name]
                key = name, recorded.__class__, recorded
                gap = gaps.get(key)
                if gap is None:
                    gaps[key] = gap = value_distance(value, recorded, name in exact)
                total += gap
            if total <= max_distance and total < math.inf:
                near.append((total, text))
        return sorted(near)


def _group(args: _Values, dtypes: Mapping[str, str]) -> Any:
    """Return what two scenarios must have in common to be near: all but the values of numbers."""
    kinds = [
        (name, None if type(value) in (int, float) else (type(value), value))
        for name, value in sorted(args.items())
    ]
    return tuple(kinds), tuple(sorted(dtypes.items()))
