"""Numbers with their nouns."""

from __future__ import annotations

__all__ = ["counted"]


def counted(number: int, noun: str, plural: str = "", *, grouped: bool = False) -> str:
    """Return a number with its noun: `1 record`, `2 records`.

    Args:
        number: the number.
        noun: the noun after 1, perhaps with a verb (`record is`).
        plural: what follows any other number; empty: the noun with an s.
        grouped: whether commas group the digits.
    """
    digits = f"{number:,}" if grouped else str(number)
    return f"{digits} {noun if number == 1 else plural or f'{noun}s'}"
