"""Errors as pages, for people: a refusal that a browser asked for is shown with what to do."""

from __future__ import annotations

import json
from http import HTTPStatus
from urllib.parse import urlencode

from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..pages import rendering
from .asgi_scope import header
from .authentication import is_page
from .browser_guard import NO_TOKENS

__all__ = ["ErrorPagesMiddleware"]

_PROBLEM = b"application/problem+json"


class ErrorPagesMiddleware:
    """ASGI middleware that renders problem details for browsers, and sends them to the login."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap an app."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and replace problem details in the answer."""
        if scope["type"] != "http" or not is_page(scope) or not _wants_html(scope):
            await self._app(scope, receive, send)
            return
        start: Message | None = None
        body = b""

        async def send_page(message: Message) -> None:
            nonlocal start, body
            if message["type"] == "http.response.start" and _is_problem(message):
                start = message
                return
            if start is None:
                await send(message)
                return
            body += message.get("body", b"")
            if not message.get("more_body", False):
                await _page(scope, start, json.loads(body))(scope, receive, send)

        await self._app(scope, receive, send_page)


def _wants_html(scope: Scope) -> bool:
    return "text/html" in (header(scope, b"accept") or "")


def _is_problem(message: Message) -> bool:
    return (b"content-type", _PROBLEM) in message["headers"]


def _page(scope: Scope, start: Message, problem: dict[str, str]) -> Response:
    status = start["status"]
    # A token would not help where the server has none, and the page then says what does.
    if status == 401 and not problem["detail"].startswith(NO_TOKENS):
        where = scope["path"]
        if scope["query_string"]:
            where += f"?{scope['query_string'].decode('latin-1')}"
        query = {"next": where} if scope["method"] in ("GET", "HEAD") else {}
        if scope.get("credential"):
            query["why"] = "expired"
        return RedirectResponse(f"/login?{urlencode(query)}", 303)
    principal = scope.get("principal")
    html = rendering.render(
        "error.html",
        status=status,
        title=HTTPStatus(status).phrase,
        detail=problem["detail"],
        namespace="",
        namespaces=[],
        principal=getattr(principal, "name", "nobody"),
        is_logged_in=bool(scope.get("credential")),
    )
    dropped = (b"content-type", b"content-length")
    response = HTMLResponse(html, status, headers=rendering.HEADERS)
    response.raw_headers += [
        (name, value) for name, value in start["headers"] if name.lower() not in dropped
    ]
    return response
