"""Login of a browser with a token, and logout."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Query, Request, Response
from fastapi.responses import HTMLResponse

from ..middleware.login_cookie import clear_cookie, set_cookie
from ..pages import rendering
from .common import CurrentCall
from .forms import read_fields
from .page_response import PAGE_METHODS, pages_router, redirect

__all__ = ["router"]

router = pages_router()

_OWN_PAGE = re.compile(r"/(?:pages/|namespaces|tokens)[\w./?&=%+~:,*-]*")
"""Where a login may lead: never to another site, whatever the link to it says."""


@router.api_route("/login", methods=PAGE_METHODS)
def show_login(
    next: Annotated[str, Query(max_length=4000)] = "",  # noqa: A002
    why: Annotated[str, Query(max_length=50)] = "",
) -> Response:
    """Show the form that asks for a token."""
    wrong = "This token has expired or was revoked: log in with another one." if why else ""
    return _form(next, wrong)


@router.post("/login")
async def log_in(request: Request, call: CurrentCall) -> Response:
    """Verify a token and let the browser keep it."""
    fields = await read_fields(request)
    token, where = fields.get("token", "").strip(), fields.get("next", "")
    if await call.server.principals.find(token) is None:
        return _form(where, "The token is wrong, expired or revoked: ask an admin for a new one.")
    response = redirect(where if _OWN_PAGE.fullmatch(where) else "/")
    set_cookie(response, request.scope, token)
    return response


@router.post("/logout")
def log_out(request: Request) -> Response:
    """Let the browser forget its token; nothing else changes, so the form carries no proof."""
    response = redirect("/login")
    clear_cookie(response, request.scope)
    return response


def _form(where: str, wrong: str) -> Response:
    html = rendering.render(
        "login.html", namespace="", namespaces=[], principal="nobody", where=where, wrong=wrong
    )
    return HTMLResponse(html, 401 if wrong else 200, headers=rendering.HEADERS)
