"""The outermost middleware: every request gets an id, a line in the log and a place in the metrics."""

from __future__ import annotations

import logging
import random
import re
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..metrics import Metrics
from ..problems import problem
from .asgi_scope import client, header

__all__ = ["Front"]

_logger = logging.getLogger("dejavu_service.requests")
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Front:
    """ASGI middleware; what nobody foresaw ends here, as a 500 that names the request."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on and takes note of its answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), 0
        given = header(scope, b"x-request-id") or ""
        request_id = given if _ID.fullmatch(given) else f"{random.getrandbits(64):016x}"

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except Exception:
            _logger.exception(
                "unforeseen", extra={"fields": {"request": request_id, "path": scope["path"]}}
            )
            if not status:
                detail = (
                    f"this should not happen: tell the server's admin about request {request_id}"
                )
                await problem(500, detail)(scope, receive, noted)
        finally:
            self._note(scope, request_id, status, time.perf_counter() - started)

    def _note(self, scope: Scope, request_id: str, status: int, seconds: float) -> None:
        route: Any = scope.get("route")
        template = getattr(route, "path", "") or "(none)"
        self._metrics.answered(_method(scope), template, status, seconds)
        # Fleets read all day long: reads that went well are counted, and logged only where somebody looks into them.
        level = logging.DEBUG if scope["method"] == "GET" and status < 400 else logging.INFO
        if _logger.isEnabledFor(level):
            fields = {
                "request": request_id,
                "method": scope["method"],
                "path": scope["path"],
                "status": status,
                "ms": round(seconds * 1000, 2),
                "client": client(scope),
                "who": getattr(scope.get("principal"), "name", None),
            }
            _logger.log(level, "answered", extra={"fields": fields})


def _method(scope: Scope) -> str:
    # A label must not be what anybody can make up.
    return (
        scope["method"]
        if scope["method"] in {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"}
        else "other"
    )
