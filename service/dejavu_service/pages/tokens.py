"""Pages of the tokens: who has which role where; issue and revoke; a browser's login."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Query, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError

from ..errors import InvalidRequestError
from ..server import LOGIN_COOKIE
from ..services import tokens
from ..services.requests import Call, CurrentCall
from ..services.tokens import TokenWish
from .rendering import AdminForm, Wanted, page, read_fields, render_page, respond, router

_MOST_TOKENS = 500
"""Tokens that are listed: jobs that exchange theirs get thousands a day."""
_OWN_PAGE = re.compile(r"/(?:pages/|namespaces|tokens)[\w./?&=%+~:,*-]*")
"""Where a login may lead: never to another site, whatever the link to it says."""


@page("/tokens")
def show_tokens(call: CurrentCall, wanted: Annotated[Wanted, Query()]) -> Response:
    """List the tokens that have not expired, for an admin of all namespaces."""
    return _show(call, wanted)


@router.post("/tokens")
def issue_token(form: AdminForm) -> Response:
    """Issue a token, and show its secret this once."""
    days = form.text("days", 10)
    try:
        wish = TokenWish(
            name=form.text("name", 200),
            role=form.text("role", 10),
            namespaces=re.findall(r"[^\s,]+", form.text("namespaces")),
            days=float(days) if days else None,
        )
    except (ValidationError, ValueError) as error:
        wrong = error.errors()[0]["loc"][0] if isinstance(error, ValidationError) else "days"
        raise InvalidRequestError(
            f"{wrong}: a token needs a name, a role, the names of its namespaces (or pr-*, or *) "
            "and perhaps a number of days: go back and correct it"
        ) from None
    call = form.call
    issued = tokens.issue(
        call.database, call.principal, wish.name, wish.role, wish.namespaces, wish.ttl
    )
    call.server.principals.clear()  # from the first token on, nobody is answered without one
    return _show(call, Wanted(), issued)


@router.post("/tokens/revoke")
def revoke_token(form: AdminForm) -> Response:
    """Revoke a token; other replicas notice within seconds."""
    tokens.revoke(form.call.database, form.call.principal, form.text("token", 16))
    form.call.server.principals.clear()
    return RedirectResponse("/tokens", 303)


def _show(call: Call, wanted: Wanted, issued: tokens.Issued | None = None) -> Response:
    most = wanted.limit if wanted.export else _MOST_TOKENS
    rows = tokens.list_unexpired(call.database, call.principal, most + 1)
    lists = {"tokens": [token.model_dump() for token in rows[:most]]}
    return render_page(
        "tokens.html", call, "", wanted, lists, rows=rows[:most], issued=issued,
        is_cut=len(rows) > most,
    )  # fmt: skip


@page("/login")
def show_login(
    next: Annotated[str, Query(max_length=4000)] = "",  # noqa: A002
    why: Annotated[str, Query(max_length=50)] = "",
) -> Response:
    """Show the form that asks for a token."""
    wrong = "This token has expired or was revoked: log in with another one." if why else ""
    return _ask(next, wrong)


@router.post("/login")
async def log_in(request: Request, call: CurrentCall) -> Response:
    """Verify a token, and let the browser keep it until it is closed, hidden from scripts."""
    fields = await read_fields(request)
    token, where = fields.get("token", "").strip(), fields.get("next", "")
    if await call.server.principals.find(token) is None:
        return _ask(where, "The token is wrong, expired or revoked: ask an admin for a new one.")
    response = RedirectResponse(where if _OWN_PAGE.fullmatch(where) else "/", 303)
    is_secure = request.scope["scheme"] == "https"
    # `lax` and not `strict`: a link in a chat shall open the page for who is logged in.
    response.set_cookie(LOGIN_COOKIE, token, httponly=True, samesite="lax", secure=is_secure)
    return response


@router.post("/logout")
def log_out(request: Request) -> Response:
    """Let the browser forget its token; nothing else changes, so the form carries no proof."""
    response = RedirectResponse("/login", 303)
    is_secure = request.scope["scheme"] == "https"
    response.delete_cookie(LOGIN_COOKIE, httponly=True, samesite="lax", secure=is_secure)
    return response


def _ask(where: str, wrong: str) -> Response:
    return respond("login.html", 401 if wrong else 200, where=where, wrong=wrong)
