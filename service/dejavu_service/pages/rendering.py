"""What all pages share: routers, templates and their filters, and errors as pages."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Coroutine
from datetime import datetime, timezone
from functools import partial
from heapq import nlargest
from http import HTTPStatus
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from pydantic import BaseModel, Field
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dejavu_cache import __version__
from dejavu_cache.system.notices import counted, printable_output

from ..routes.common import Call
from ..server import NO_TOKENS, is_page
from ..services.access import ANYBODY, EVERYWHERE, NOBODY, READER, Principal
from ..storage import summaries
from ..storage.database import Database
from .forms import form_proof

__all__ = [
    "PAGE_METHODS",
    "PAGE_SIZE",
    "ErrorPagesMiddleware",
    "Wanted",
    "count_pages",
    "format_milliseconds",
    "list_namespaces",
    "pages_router",
    "redirect",
    "render",
    "render_page",
    "respond",
    "router",
    "stylesheet",
    "take_page",
]

PAGE_METHODS = ["GET", "HEAD"]
_FOLDER = Path(__file__).parent / "templates"
_MOST_NAMES = 200
"""Namespaces that the field of each page suggests: those with the most records."""
PAGE_SIZE = 50
"""Rows of a table on one page."""
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    # Without a referrer, browsers would call the origin of the pages' own forms `null`.
    "Referrer-Policy": "same-origin",
    "Cache-Control": "private, no-store",
}
_T = TypeVar("_T")


class Wanted(BaseModel):
    """What the query of a page's address asks for."""

    page: int = Field(default=1, ge=1, le=100_000)

    @property
    def query(self) -> str:
        """Query of the first page of the same list, for links to other pages."""
        return urlencode(self.model_dump(exclude={"page"}))


def take_page(rows: list[_T], page: int) -> list[_T]:
    """Return the rows of a page, counted from 1; empty beyond the last page."""
    return rows[(page - 1) * PAGE_SIZE : page * PAGE_SIZE]


def count_pages(rows: int) -> int:
    """Return the number of pages that so many rows fill."""
    return -(-rows // PAGE_SIZE)


class _PageRoute(APIRoute):
    """A route that makes few pages at a time, so that they leave programs memory and threads."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler behind the turns."""
        handler = super().get_route_handler()
        if not (self.methods or set()) <= set(PAGE_METHODS):
            return handler  # a form may arrive slowly

        async def handle_in_turn(request: Request) -> Response:
            who = request.scope.get("principal", NOBODY).name
            async with request.app.state.server.making_pages.turn(who):
                return await handler(request)

        return handle_in_turn


def pages_router() -> APIRouter:
    """Create a router for pages, which are no part of the protocol."""
    return APIRouter(
        default_response_class=HTMLResponse, include_in_schema=False, route_class=_PageRoute
    )


router = pages_router()


@router.api_route("/style.css", methods=PAGE_METHODS)
def show_style() -> Response:
    """Return the stylesheet of the pages."""
    return Response(stylesheet(), media_type="text/css")


@router.api_route("/favicon.svg", methods=PAGE_METHODS)
@router.api_route("/favicon.ico", methods=PAGE_METHODS)
def show_icon() -> Response:
    """Return the icon of the pages."""
    headers = {"Cache-Control": "public, max-age=86400"}
    icon = (_FOLDER / "favicon.svg").read_text()
    return Response(icon, media_type="image/svg+xml", headers=headers)


def stylesheet() -> str:
    """Return the stylesheet of the pages."""
    return (_FOLDER / "style.css").read_text()


def list_namespaces(
    database: Database, principal: Principal, search: str = ""
) -> list[tuple[str, int, int, float | None]]:
    """List the namespaces that the principal may read, by name.

    Returns:
        Of each the name, the numbers of its contexts and records, and when they changed last.
    """
    with database.read() as connection:
        rows = summaries.list_namespaces(connection)
    return [
        row for row in rows if principal.may("read", row[0]) and search.lower() in row[0].lower()
    ]


def render_page(template: str, call: Call, namespace: str, **values: object) -> Response:
    """Render a page for the caller, who gets forms for what their role allows."""
    principal = call.principal
    largest = nlargest(_MOST_NAMES, list_namespaces(call.database, principal), key=itemgetter(2))
    return respond(
        template,
        namespace=namespace,
        namespaces=sorted(name for name, *_ in largest),
        principal=principal.name,
        is_logged_in=principal not in (ANYBODY, READER),
        may_write=bool(namespace) and principal.may("write", namespace),
        may_admin=bool(namespace) and principal.may("admin", namespace),
        may_make_tokens=principal.may("admin", EVERYWHERE),
        proof=form_proof(call),
        **values,
    )


def respond(template: str, status: int = 200, /, **values: object) -> Response:
    """Render a template to a response with the headers of all pages."""
    return HTMLResponse(render(template, **values), status, headers=_HEADERS)


def redirect(path: str) -> Response:
    """Let the browser show a page after a form, so that reloading it sends nothing again."""
    return RedirectResponse(path, 303)


def render(template: str, **values: object) -> str:
    """Render a template to HTML."""
    return _environment.get_template(template).render(values)


def format_milliseconds(value: float) -> str:
    """Return a time with its unit, to three digits."""
    if value >= 999.5:  # rounded to three digits, it is a second
        amount, unit = value / 1000, "s"
    else:
        amount, unit = (value, "ms") if value >= 0.9995 else (value * 1000, "µs")
    digits = f"{amount:#.3g}".rstrip(".") if amount < 999.5 else f"{amount:,.0f}"
    return f"{digits} {unit}"


def _format_moment(moment: datetime | float) -> str:
    """Return a time, also one in seconds since 1970, to the minute."""
    if not isinstance(moment, datetime):
        moment = datetime.fromtimestamp(moment, timezone.utc)
    return f"{moment.astimezone(timezone.utc):%Y-%m-%d %H:%M}"


def _format_duration(seconds: float) -> str:
    if seconds <= 0:
        return "\N{EN DASH}"
    if seconds < 1:
        return "< 1 s"
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.0f} s"


def _change_query(query: str, **changes: object) -> str:
    """Return a query string with parameters replaced, or removed where the value is None."""
    values = {name: value for name, value in parse_qsl(query) if name not in changes}
    added = {name: str(value) for name, value in changes.items() if value is not None}
    return urlencode({**values, **added})


def _break_after_dots(name: str) -> Markup:
    return Markup("<wbr>").join(re.split(r"(?<=\.)", name))


_environment = Environment(
    loader=FileSystemLoader(_FOLDER),
    autoescape=True,
    finalize=printable_output,
    trim_blocks=True,
    lstrip_blocks=True,
    # What a template names and a page lacks would show nothing, and nobody would miss it.
    undefined=StrictUndefined,
)
_environment.filters |= {
    "counted": partial(counted, grouped=True),
    "ms": format_milliseconds,
    "moment": _format_moment,
    "dotted": _break_after_dots,
    "duration": _format_duration,
    "with_query": _change_query,
}
_environment.globals |= {
    "version": __version__,
    # What pages without a namespace or a caller leave out.
    "namespace": "",
    "namespaces": [],
    "principal": "nobody",
    "is_logged_in": False,
    "may_make_tokens": False,
    "tab": "",
    "style": "",
}


class ErrorPagesMiddleware:
    """ASGI middleware that renders problem details for browsers, and sends them to the login."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap an app."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and replace problem details in the answer."""
        is_shown = scope["type"] == "http" and is_page(scope)
        if not is_shown or "text/html" not in Headers(scope=scope).get("accept", ""):
            await self._app(scope, receive, send)
            return
        start: Message | None = None
        body = b""

        async def send_page(message: Message) -> None:
            nonlocal start, body
            if (b"content-type", b"application/problem+json") in message.get("headers", ()):
                start = message
                return
            if start is None:
                await send(message)
                return
            body += message.get("body", b"")
            if not message.get("more_body", False):
                await _error_page(scope, start, json.loads(body))(scope, receive, send)

        await self._app(scope, receive, send_page)


def _error_page(scope: Scope, start: Message, problem: dict[str, str]) -> Response:
    status = start["status"]
    # A token would not help where the server has none, and the page then says what does.
    if status == 401 and not problem["detail"].startswith(NO_TOKENS):
        where = scope["path"]
        if scope["query_string"]:
            where += f"?{scope['query_string'].decode('latin-1')}"
        query = {"next": where} if scope["method"] in PAGE_METHODS else {}
        if scope.get("credential"):
            query["why"] = "expired"
        return RedirectResponse(f"/login?{urlencode(query)}", 303)
    response = respond(
        "error.html",
        status,
        status=status,
        title=HTTPStatus(status).phrase,
        detail=problem["detail"],
        principal=getattr(scope.get("principal"), "name", "nobody"),
        is_logged_in=bool(scope.get("credential")),
    )
    dropped = (b"content-type", b"content-length")
    response.raw_headers += [
        (name, value) for name, value in start["headers"] if name.lower() not in dropped
    ]
    return response
