"""Checks of JSON texts that a JSON parser does not make."""

from __future__ import annotations

import re

__all__ = ["has_nul"]

_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


def has_nul(text: bytes) -> bool:
    """Return whether a JSON text holds an escaped NUL, which Postgres cannot store."""
    return b"\\u0000" in text and _NUL.search(text) is not None
