"""Find the recorded scenarios near a requested one without reading their records.

An index is packed into arrays, so that one of ten thousand scenarios can be written to a file and
read back in less than a millisecond.
"""

from __future__ import annotations

import heapq
import json
import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from .scenario import Scenario
from .selection import value_distance

__all__ = ["ScenarioIndex"]

_Values = Mapping[str, Any]


class _Group(NamedTuple):
    """Scenarios that differ in numbers alone, sorted by the number with the most values.

    Attributes:
        names: the arguments that are numbers.
        lead: index of the name by which the scenarios are sorted; -1 if there are no names.
        columns: the numbers by name.
        ends: where each scenario's text ends.
        texts: the scenarios' texts.
    """

    names: Sequence[str]
    lead: int
    columns: Sequence[Sequence[float]]
    ends: Sequence[int]
    texts: bytes | memoryview

    @classmethod
    def of(cls, entries: list[tuple[_Values, str]]) -> _Group:
        """Return the group of some scenarios, given by their arguments and text."""
        names = [name for name, value in sorted(entries[0][0].items()) if _is_number(value)]
        distinct = [len({args[name] for args, _ in entries}) for name in names]
        lead = distinct.index(max(distinct)) if names else -1
        if names:
            entries.sort(key=lambda entry: float(entry[0][names[lead]]))
        columns = [array("d", (args[name] for args, _ in entries)) for name in names]
        encoded = [text.encode() for _, text in entries]
        ends, end = array("Q"), 0
        for text in encoded:
            end += len(text)
            ends.append(end)
        return cls(names, lead, columns, ends, b"".join(encoded))

    def near(
        self, args: _Values, exact: Collection[str], max_distance: float
    ) -> Iterator[tuple[float, str]]:
        """Yield the distances and texts of the scenarios within a cap, the nearest first."""
        wanted = [args[name] for name in self.names]
        exact_values = {name: args[name] for name in self.names if name in exact}
        candidates: list[tuple[float, str]] = []
        for least, index in self._outward(args):
            if least > max_distance or least == math.inf:
                break
            while candidates and candidates[0][0] < least:  # nothing further on is nearer
                yield heapq.heappop(candidates)
            total = 0.0
            for value, column in zip(wanted, self.columns, strict=True):
                total += value_distance(value, column[index], False)
            if total <= max_distance and total < math.inf:
                text = self._text(index)
                if not exact_values or _has_values(text, exact_values):
                    heapq.heappush(candidates, (total, text))
        while candidates:
            yield heapq.heappop(candidates)

    def _outward(self, args: _Values) -> Iterator[tuple[float, int]]:
        """Yield the leading number's distance and the index of each scenario, the least first."""
        if self.lead < 0:
            yield from ((0.0, index) for index in range(len(self.ends)))
            return
        value, values = args[self.names[self.lead]], self.columns[self.lead]
        first_zero, after_zeros = bisect_left(values, 0.0), bisect_right(values, 0.0)
        low, high = (0, first_zero) if value < 0 else (after_zeros, len(values))
        middle = bisect_left(values, value, low, high)
        zeros = range(first_zero, after_zeros if value >= 0 else first_zero)

        def gaps(indices: Iterable[int]) -> Iterator[tuple[float, int]]:
            return ((value_distance(value, values[index], False), index) for index in indices)

        yield from heapq.merge(
            gaps(range(middle - 1, low - 1, -1)), gaps(range(middle, high)), gaps(zeros)
        )

    def _text(self, index: int) -> str:
        start = self.ends[index - 1] if index else 0
        return bytes(self.texts[start : self.ends[index]]).decode()


class ScenarioIndex:
    """Recorded scenarios of one context.

    Args:
        texts: the scenarios as JSON, in the form of `Scenario.text`; damaged ones are left out.
    """

    def __init__(self, texts: Iterable[str] = ()) -> None:
        """Parse and group the scenarios."""
        grouped: dict[str, list[tuple[_Values, str]]] = {}
        for args, dtypes, text in _parse(list(texts)):
            grouped.setdefault(_group_name(args, dtypes), []).append((args, text))
        self._groups = {name: [_Group.of(entries)] for name, entries in grouped.items()}

    @classmethod
    def join(cls, indexes: Iterable[ScenarioIndex]) -> ScenarioIndex:
        """Return several indexes as one; they may have the same scenarios."""
        index = cls()
        for part in indexes:
            for name, groups in part._groups.items():
                index._groups.setdefault(name, []).extend(groups)
        return index

    def near(
        self,
        scenario: Scenario,
        *,
        exact: Collection[str] = (),
        max_distance: float = math.inf,
    ) -> Iterator[tuple[float, str]]:
        """Yield the distances and texts of the scenarios within a cap, the nearest first.

        Args:
            scenario: the requested scenario.
            exact: key arguments that must be equal though they are numbers.
            max_distance: in powers of two, summed over the key arguments.
        """
        groups = self._groups.get(_group_name(scenario.args, scenario.dtypes), ())
        latest = None
        for entry in heapq.merge(
            *(group.near(scenario.args, exact, max_distance) for group in groups)
        ):
            if entry != latest:
                yield entry
            latest = entry

    def pack(self) -> bytes:
        """Return the index as bytes, for this machine."""
        header, body = [], bytearray()
        for name, groups in self._groups.items():
            for group in groups:
                header.append([name, group.names, group.lead, len(group.ends), len(body)])
                for column in (*group.columns, group.ends):
                    body += memoryview(column).cast("B")  # type: ignore[arg-type]
                body += group.texts
        return json.dumps(header).encode() + b"\n" + body

    @classmethod
    def unpack(cls, data: bytes) -> ScenarioIndex:
        """Return the index that `pack` wrote.

        Raises:
            ValueError: it is truncated, or no index.
        """
        index = cls()
        end = data.index(b"\n") + 1
        body = memoryview(data)[end:]
        try:
            for name, names, lead, count, start in json.loads(data[:end]):
                parts = [
                    body[start + 8 * count * place : start + 8 * count * (place + 1)]
                    for place in range(len(names) + 1)
                ]
                columns = [part.cast("d") for part in parts[:-1]]
                ends = parts[-1].cast("Q")
                first = start + 8 * count * len(parts)
                texts = body[first : first + ends[-1]]
                if len(texts) != ends[-1] or any(len(column) != count for column in columns):
                    raise ValueError("it is truncated")
                group = _Group(names, lead, columns, ends, texts)
                index._groups.setdefault(name, []).append(group)
        except (TypeError, IndexError) as error:
            raise ValueError(f"it is no index: {error}") from None
        return index


def _parse(texts: list[str]) -> Iterator[tuple[_Values, Mapping[str, str], str]]:
    """Yield the arguments, dtypes and text of each text that is a scenario."""
    try:
        scenarios = json.loads(f"[{','.join(texts)}]")  # all together, which is fast
    except (ValueError, RecursionError):
        scenarios = []
    if len(scenarios) != len(texts):
        scenarios = map(_json_or_none, texts)
    for scenario, text in zip(scenarios, texts, strict=True):
        fields = scenario if isinstance(scenario, dict) else {}
        args, dtypes = fields.get("args"), fields.get("dtypes")
        if isinstance(args, dict) and isinstance(dtypes, dict):
            yield args, dtypes, text


def _json_or_none(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _has_values(text: str, values: _Values) -> bool:
    args = json.loads(text)["args"]
    return all(
        type(args[name]) is type(value) and args[name] == value for name, value in values.items()
    )


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


def _group_name(args: _Values, dtypes: Mapping[str, str]) -> str:
    """Return what two scenarios must have in common to be near: all but the values of numbers."""
    kinds = [
        [name, None if _is_number(value) else [type(value).__name__, value]]
        for name, value in sorted(args.items())
    ]
    return json.dumps([kinds, sorted(dtypes.items())])
