"""Logs as JSON lines."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime, timezone
from functools import lru_cache

__all__ = ["JsonFormatter", "configure"]

_encode = json.JSONEncoder(default=str).encode


@lru_cache(maxsize=4)
def _format_second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")


class JsonFormatter(logging.Formatter):
    """Formats time, level, logger, message and the fields of `extra={"fields": …}`."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as one line of JSON."""
        line = {
            "at": f"{_format_second(int(record.created))}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return _encode(line)


def configure(level: str) -> None:
    """Send all logs of at least this level to stderr as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("alembic").setLevel(logging.WARNING)
