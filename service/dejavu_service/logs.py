"""Logs as JSON, a line each."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime, timezone
from functools import lru_cache

__all__ = ["JsonFormatter", "configure"]

_encode = json.JSONEncoder(default=str).encode


@lru_cache(maxsize=4)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")


class JsonFormatter(logging.Formatter):
    """Time, level, logger, message and whatever `extra={"fields": …}` gives."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line = {
            "at": f"{_second(int(record.created))}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return _encode(line)


def configure(level: str) -> None:
    """Sends all logs to stderr as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("alembic").setLevel(logging.WARNING)
