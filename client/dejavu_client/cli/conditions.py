"""Conditions on a scenario's arguments, such as `num_seqs>=64`, for `--where`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from dejavu_cache.errors import SettingsError
from dejavu_cache.model.scenario import Scenario

__all__ = ["Condition", "parse_conditions", "parse_conditions_on"]

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


class Condition(NamedTuple):
    """A comparison of an argument's value, or of a tensor's dtype, with a constant."""

    name: str
    operator: str
    value: str

    def matches(self, scenario: Scenario) -> bool:
        """Return whether a scenario has the argument and its value satisfies the condition.

        Numbers are compared as numbers; other values only as equal or not, by their text.
        """
        values = scenario.values
        if self.name not in values:
            return False
        value = values[self.name]
        compare = _OPERATORS[self.operator]
        limit = _number(self.value)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and limit is not None:
            return compare(value, limit)
        return self.operator in ("=", "==", "!=") and compare(str(value), self.value)


def parse_conditions(texts: Iterable[str]) -> list[Condition]:
    """Parse conditions, all of which a scenario must satisfy.

    Raises:
        SettingsError: a text is no condition.
    """
    conditions = []
    for text in texts:
        match = re.fullmatch(r"\s*([^\s=<>!]+)\s*(==|!=|>=|<=|=|>|<)\s*(|[^\s=<>].*?)\s*", text)
        if not match:
            raise SettingsError(f"{text!r}: write NAME=VALUE, NAME>=NUMBER, NAME!=VALUE, …")
        conditions.append(Condition(*match.groups()))
    return conditions


def parse_conditions_on(texts: Iterable[str], scenarios: Iterable[Scenario]) -> list[Condition]:
    """Parse conditions on the arguments of some scenarios.

    Raises:
        SettingsError: a text is no condition, or no scenario has the argument that it names.
    """
    conditions = parse_conditions(texts)
    if not conditions:
        return []
    names = {name for scenario in scenarios for name in scenario.values}
    unknown = [condition.name for condition in conditions if condition.name not in names]
    if names and unknown:
        raise SettingsError(
            f"{', '.join(unknown)}: no such argument; scenarios have {', '.join(sorted(names))}"
        )
    return conditions


def _number(text: str) -> float | None:
    for parse in (int, float):  # a float would round a large integer
        try:
            return parse(text)
        except ValueError:
            continue
    return None
