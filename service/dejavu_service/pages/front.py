"""What comes before the pages of a namespace: the login, the list of namespaces, and the style."""

import re
from operator import itemgetter
from typing import Annotated, Any
from urllib.parse import parse_qsl

from fastapi import Query, Request, Response
from fastapi.responses import FileResponse, RedirectResponse
from pydantic import Field

from ..server import LOGIN_COOKIE
from ..services.requests import Call, CurrentCall, body_chunks
from ..storage import summaries
from .rendering import FOLDER, Wanted, render_page, respond, router

_MOST_BYTES = 16 * 1024
"""Bytes of the form of a login."""
_OWN_PAGE = re.compile(r"/(?:pages/|namespaces)[\w./?&=%+~:,*-]*")
"""Where a login may lead: never to another site, whatever the link to it says."""


@router.get("/style.css")
def show_style() -> Response:
    """Return the stylesheet of the pages."""
    return FileResponse(FOLDER / "style.css")


@router.get("/favicon.svg")
@router.get("/favicon.ico")
def show_icon() -> Response:
    """Return the icon of the pages."""
    return FileResponse(FOLDER / "favicon.svg", headers={"Cache-Control": "public, max-age=86400"})


@router.get("/login")
def show_login() -> Response:
    """Show the form that asks for a token."""
    return respond("login.html", where="", wrong="")


@router.post("/login")
async def log_in(request: Request, call: CurrentCall) -> Response:
    """Verify a token, and let the browser keep it until it is closed, hidden from scripts."""
    body = b"".join([chunk async for chunk in body_chunks(request, _MOST_BYTES)])
    fields = dict(parse_qsl(body.decode(errors="replace")))
    token, where = fields.get("token", "").strip(), fields.get("next", "")
    if await call.server.principals.find(token, getattr(request.client, "host", "")) is None:
        wrong = "the token is wrong, expired or revoked: ask an admin for a new one"
        return respond("login.html", 401, where=where, wrong=wrong)
    response = RedirectResponse(where if _OWN_PAGE.fullmatch(where) else "/", 303)
    is_secure = request.scope["scheme"] == "https"
    # `lax` and not `strict`: a link in a chat shall open the page for who is logged in.
    response.set_cookie(LOGIN_COOKIE, token, httponly=True, samesite="lax", secure=is_secure)
    return response


@router.post("/logout")
def log_out() -> Response:
    """Let the browser forget its token."""
    response = RedirectResponse("/login", 303)
    response.delete_cookie(LOGIN_COOKIE)
    return response


@router.get("/")
def show_front(call: CurrentCall) -> Response:
    """Redirect to the namespace with the most records."""
    largest = max(list_namespaces(call), key=itemgetter("records"), default={"namespace": "main"})
    return RedirectResponse(f"/pages/{largest['namespace']}")


class NamespacesFilter(Wanted):
    """A part of the namespaces' names."""

    q: str = Field(default="", max_length=500)


@router.get("/namespaces")
def show_namespaces(call: CurrentCall, wanted: Annotated[NamespacesFilter, Query()]) -> Response:
    """List the namespaces whose name contains a text."""
    listed = list_namespaces(call, wanted.q)
    lists = {"namespaces": listed[wanted.rows()]}
    return render_page("namespaces.html", call, "", wanted, lists, total=len(listed))


def list_namespaces(call: Call, search: str = "") -> list[dict[str, Any]]:
    """List the namespaces that the caller may read, by name, whose name contains a text."""
    with call.database.read() as connection:
        rows = summaries.list_namespaces(connection)
    return [
        row
        for row in rows
        if call.principal.may("read", row["namespace"])
        and search.lower() in row["namespace"].lower()
    ]
