"""Pages of the tokens: who has which role where; issue and revoke."""

from __future__ import annotations

import re

from fastapi import Response
from pydantic import ValidationError

from ..errors import InvalidRequestError
from ..services import tokens
from ..services.access import EVERYWHERE
from .common import Call, CurrentCall
from .forms import AdminForm
from .page_response import PAGE_METHODS, pages_router, redirect, render_page
from .tokens import TokenWish

__all__ = ["router"]

router = pages_router()
_MOST_TOKENS = 500
"""Tokens that are listed: jobs that exchange theirs get thousands a day."""


@router.api_route("/tokens", methods=PAGE_METHODS)
def show_tokens(call: CurrentCall) -> Response:
    """List the tokens that have not expired, for an admin of all namespaces."""
    return _tokens(call, None)


@router.post("/tokens")
def issue_token(form: AdminForm) -> Response:
    """Issue a token, and show its secret this once."""
    names = re.split(r"[\s,]+", form.text("namespaces"))
    days = form.text("days", 10)
    try:
        wish = TokenWish(
            name=form.text("name", 200),
            role=form.text("role", 10),
            namespaces=[name for name in names if name],
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
    return _tokens(call, issued)


@router.post("/tokens/revoke")
def revoke_token(form: AdminForm) -> Response:
    """Revoke a token; other replicas notice within seconds."""
    tokens.revoke(form.call.database, form.call.principal, form.text("token", 16))
    form.call.server.principals.clear()
    return redirect("/tokens")


def _tokens(call: Call, issued: tokens.Issued | None) -> Response:
    call.principal.require("admin", EVERYWHERE)
    rows = tokens.list_unexpired(call.database, call.principal, _MOST_TOKENS + 1)
    is_cut = len(rows) > _MOST_TOKENS
    return render_page(
        "tokens.html", call, "", rows=rows[:_MOST_TOKENS], issued=issued, is_cut=is_cut
    )
