"""Warnings through `logging`, each given once per process."""

from __future__ import annotations

import logging
import threading

__all__ = ["logger", "warn_once"]

logger = logging.getLogger("dejavu_cache")

_said: set[str] = set()
_lock = threading.Lock()


def warn_once(about: str, message: str) -> None:
    """Log a warning, unless this process has already logged one about the same subject."""
    with _lock:
        if about in _said:
            return
        _said.add(about)
    logger.warning(message)
