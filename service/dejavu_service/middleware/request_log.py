"""Logs as JSON lines, and the middleware that logs and counts each request, whatever its end."""

from __future__ import annotations

import json
import logging
import random
import re
import sys
import time
from datetime import datetime, timezone
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..metrics import Metrics
from ..problems import ANSWERED_ERRORS, problem
from .authentication import client_address

__all__ = ["RequestLogMiddleware", "configure"]

_logger = logging.getLogger("dejavu_service.requests")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_LONGEST_PATH = 500
_EXPORT = "/v1/{namespace}/export"
_METHODS = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"}
_ids = random.Random()
"""Random numbers of its own: those of `random` may be of a program that embeds the app."""


class RequestLogMiddleware:
    """ASGI middleware that logs and counts each request and answers unexpected errors with 500."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        """Wrap an app, counting its requests in `metrics`."""
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on and log its response."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), 0
        sent_id = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        request_id = sent_id if _REQUEST_ID.fullmatch(sent_id) else f"{_ids.getrandbits(64):016x}"

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except ClientDisconnect:
            # Nobody is left to answer; the log says so by the number that nginx gave to this.
            status = status or 499
        except Exception as error:
            fields = {"request": request_id, "path": _path(scope)}
            if status and isinstance(error.__cause__, ANSWERED_ERRORS):
                # The server closes the connection, by which the client notices it.
                fields["error"] = str(error.__cause__).partition("\n")[0]
                _logger.warning("an answer was cut off", extra={"fields": fields})
            else:
                _logger.exception("unforeseen", extra={"fields": fields})
            if not status:
                detail = (
                    f"this should not happen: tell the server's admin about request {request_id}"
                )
                await problem(500, detail)(scope, receive, send_with_id)
        finally:
            self._log(scope, request_id, status, time.perf_counter() - started)

    def _log(self, scope: Scope, request_id: str, status: int, seconds: float) -> None:
        route: Any = scope.get("route")
        path_template = getattr(route, "path_format", "") or "(none)"
        # Clients may invent methods; an unbounded set of labels would fill Prometheus' memory.
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._metrics.count_request(method, path_template, status, seconds)
        # A fleet reads all day long: successful reads are logged at the level `debug` only, except
        # exports, by which somebody takes everything.
        is_read = scope["method"] == "GET" and status < 400 and path_template != _EXPORT
        level = logging.DEBUG if is_read else logging.INFO
        if _logger.isEnabledFor(level):
            fields = {
                "request": request_id,
                "method": scope["method"],
                "path": _path(scope),
                "status": status,
                "ms": round(seconds * 1000, 2),
                "client": client_address(scope),
                "who": getattr(scope.get("principal"), "name", None),
            }
            _logger.log(level, "answered", extra={"fields": fields})


def _path(scope: Scope) -> str:
    path: str = scope["path"]
    return path if len(path) <= _LONGEST_PATH else f"{path[:_LONGEST_PATH]}…"


class _JsonFormatter(logging.Formatter):
    """Formats time, level, logger, message and the fields of `extra={"fields": …}`."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, timezone.utc)
        line = {
            "at": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure(level: str) -> None:
    """Send all logs of at least this level to stderr as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("alembic").setLevel(logging.WARNING)
