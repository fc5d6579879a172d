"""Warnings that a running program sees once, through `logging`, and that never stop it."""

from __future__ import annotations

import logging
import threading

__all__ = ["logger", "warn_once"]

logger = logging.getLogger("dejavu_cache")

_said: set[str] = set()
_lock = threading.Lock()


def warn_once(about: str, message: str) -> None:
    """Logs a warning, unless one about the same thing was logged by this process before."""
    with _lock:
        if about in _said:
            return
        _said.add(about)
    logger.warning(message)
