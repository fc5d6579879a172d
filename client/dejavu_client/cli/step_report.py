"""Work in several steps that cannot be taken back, and what is said if it ends in between."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar

from dejavu_cache.errors import StoreError

from .errors import PartlyDoneError
from .output import note

__all__ = ["sum_of_steps"]

T = TypeVar("T")


def sum_of_steps(
    items: Collection[T], step: Callable[[T], int], describe: Callable[[int], str]
) -> int:
    """Return the sum of what a function returns for each item.

    Args:
        items: what to work on.
        step: does the work on one item and counts what it changed.
        describe: says of a number what is counted and what became of it: `1 record deleted`.

    Raises:
        StoreError: the first step failed.
        PartlyDoneError: a later step failed.
        KeyboardInterrupt: the user ended it, after a note on what is done.
    """
    count = 0
    for done, item in enumerate(items):
        text = f"{describe(count)}, for {done} of {len(items)}"
        try:
            count += step(item)
        except StoreError as error:
            if not done:
                raise
            raise PartlyDoneError(f"only {text}: {error}") from None
        except KeyboardInterrupt:
            note(f"only {text}; the next may be done too")
            raise
    return count
