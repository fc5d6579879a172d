"""Name the fields in which two scenarios, or two contexts, differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["Difference", "differences"]


class Difference(NamedTuple):
    """A field whose value in a record differs from the one looked for."""

    field: str
    wanted: Any
    found: Any

    def __str__(self) -> str:
        """Name the field and both values."""
        return f"{self.field}: {self.found!r} recorded, {self.wanted!r} wanted"


def differences(
    wanted: Mapping[str, Any], found: Mapping[str, Any], prefix: str = ""
) -> list[Difference]:
    """Return the leaves in which two nested mappings differ, in order."""
    result: list[Difference] = []
    for name in dict.fromkeys([*wanted, *found]):
        left, right = wanted.get(name), found.get(name)
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            result += differences(left, right, f"{prefix}{name}.")
        elif left != right or type(left) is not type(right):
            result.append(Difference(prefix + name, left, right))
    return result
