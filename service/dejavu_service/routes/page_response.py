"""Routers and responses of the HTML pages."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from ..pages import rendering
from ..pages.namespaces import list_namespaces
from ..services.access import ANYBODY, EVERYWHERE, READER
from .common import Call
from .forms import form_proof

__all__ = ["PAGE_METHODS", "pages_router", "redirect", "render_page"]

PAGE_METHODS = ["GET", "HEAD"]


def pages_router() -> APIRouter:
    """Create a router for pages, which are no part of the protocol."""
    return APIRouter(default_response_class=HTMLResponse, include_in_schema=False)


def render_page(template: str, call: Call, namespace: str, **values: object) -> Response:
    """Render a page for the caller, who gets forms for what their role allows."""
    principal = call.principal
    rows = list_namespaces(call.database, principal)
    html = rendering.render(
        template,
        namespace=namespace,
        namespaces=[row.name for row in rows],
        principal=principal.name,
        is_logged_in=principal not in (ANYBODY, READER),
        may_write=bool(namespace) and principal.may("write", namespace),
        may_admin=bool(namespace) and principal.may("admin", namespace),
        may_make_tokens=principal.may("admin", EVERYWHERE),
        proof=form_proof(call),
        **values,
    )
    return HTMLResponse(html, headers=rendering.HEADERS)


def redirect(path: str) -> Response:
    """Let the browser show a page after a form, so that reloading it sends nothing again."""
    return RedirectResponse(path, 303)
