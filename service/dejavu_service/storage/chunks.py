"""Divide values over several statements: databases limit their number, and memory their size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

__all__ = ["chunks", "divide"]

T = TypeVar("T")

_SIZE = 500


def chunks(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield values, as many at a time as one IN list may have."""
    return (values[start : start + _SIZE] for start in range(0, len(values), _SIZE))


def divide(
    values: Iterable[T], size: Callable[[T], int], most: int, total: int
) -> Iterator[list[T]]:
    """Divide values into parts of at most `most`, and of a `total` size or one larger value."""
    part: list[T] = []
    used = 0
    for value in values:
        if part and (len(part) == most or used + size(value) > total):
            yield part
            part, used = [], 0
        part.append(value)
        used += size(value)
    if part:
        yield part
