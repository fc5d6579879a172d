"""Texts of strangers, as a terminal, a log or a page may show them."""

from __future__ import annotations

import re

__all__ = ["printable", "printable_output"]

_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]"
)
"""What moves a cursor, colours a terminal, turns a line's direction or is not seen at all, but tabs
and line ends."""


def printable(text: str) -> str:
    """Return a text with its control characters escaped, as JSON writes them."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def printable_output(value: object) -> object:
    """Return a value for a template's output, with control characters escaped if it is a text."""
    return type(value)(printable(value)) if isinstance(value, str) else value
