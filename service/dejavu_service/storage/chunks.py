"""Divide the values of an IN list over several statements: databases limit their number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

__all__ = ["chunks"]

T = TypeVar("T")

_SIZE = 500


def chunks(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield values, as many at a time as one IN list may have."""
    return (values[start : start + _SIZE] for start in range(0, len(values), _SIZE))
