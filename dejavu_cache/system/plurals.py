"""Numbers with their nouns and units."""

from __future__ import annotations

__all__ = ["counted", "size_text"]


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


def size_text(size: int) -> str:
    """Return a number of bytes with its unit: `34.2 KiB`, `1.5 MiB`."""
    return f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{size / 2**10:.1f} KiB"
