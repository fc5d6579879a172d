"""Routers and responses of the HTML pages."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from heapq import nlargest
from typing import Any

import anyio
from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute

from ..middleware.limits import LONGEST_WAIT
from ..pages import rendering
from ..pages.namespaces import NamespaceRow, list_namespaces
from ..problems import ProblemError
from ..services.access import ANYBODY, EVERYWHERE, READER
from .common import Call
from .forms import form_proof

__all__ = ["PAGE_METHODS", "pages_router", "redirect", "render_page"]

PAGE_METHODS = ["GET", "HEAD"]
_MOST_NAMES = 200
"""Namespaces that the field of each page suggests: those with the most records."""


class _PageRoute(APIRoute):
    """A route that makes few pages at a time, so that they leave programs memory and threads."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler behind the turns."""
        handler = super().get_route_handler()
        if not (self.methods or set()) <= set(PAGE_METHODS):
            return handler  # a form may arrive slowly

        async def handle_in_turn(request: Request) -> Response:
            turns = request.app.state.server.page_turns
            has_turn = False
            with anyio.move_on_after(LONGEST_WAIT):
                has_turn = await turns.acquire()
            if not has_turn:
                detail = "other pages are being made for long: try again"
                raise ProblemError(503, detail, headers={"Retry-After": "2"})
            try:
                return await handler(request)
            finally:
                turns.release()

        return handle_in_turn


def pages_router() -> APIRouter:
    """Create a router for pages, which are no part of the protocol."""
    return APIRouter(
        default_response_class=HTMLResponse, include_in_schema=False, route_class=_PageRoute
    )


def render_page(template: str, call: Call, namespace: str, **values: object) -> Response:
    """Render a page for the caller, who gets forms for what their role allows."""
    principal = call.principal
    rows = list_namespaces(call.database, principal)
    html = rendering.render(
        template,
        namespace=namespace,
        namespaces=sorted(row.name for row in nlargest(_MOST_NAMES, rows, _count_records)),
        principal=principal.name,
        is_logged_in=principal not in (ANYBODY, READER),
        may_write=bool(namespace) and principal.may("write", namespace),
        may_admin=bool(namespace) and principal.may("admin", namespace),
        may_make_tokens=principal.may("admin", EVERYWHERE),
        proof=form_proof(call),
        **values,
    )
    return HTMLResponse(html, headers=rendering.HEADERS)


def _count_records(row: NamespaceRow) -> int:
    return row.records


def redirect(path: str) -> Response:
    """Let the browser show a page after a form, so that reloading it sends nothing again."""
    return RedirectResponse(path, 303)
