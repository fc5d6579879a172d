"""The cookie with which a browser presents the token that somebody logged in with."""

from __future__ import annotations

import re

from starlette.responses import Response
from starlette.types import Scope

from .asgi_scope import header

__all__ = ["clear_cookie", "read_cookie", "set_cookie"]

_NAME = "dejavu_token"
_COOKIE = re.compile(rf"(?:^|;)\s*{_NAME}=([A-Za-z0-9_-]{{1,200}})\s*(?=;|$)")


def read_cookie(scope: Scope) -> str | None:
    """Return the token in a request's cookie, or None."""
    found = _COOKIE.search(header(scope, b"cookie") or "")
    return found.group(1) if found else None


def set_cookie(response: Response, scope: Scope, token: str) -> None:
    """Let the browser present a token until it is closed, to pages alone and not to scripts."""
    # `lax` and not `strict`: a link in a chat shall open the page for who is logged in.
    response.set_cookie(
        _NAME, token, httponly=True, samesite="lax", secure=scope["scheme"] == "https"
    )


def clear_cookie(response: Response, scope: Scope) -> None:
    """Let the browser forget the token."""
    response.delete_cookie(_NAME, httponly=True, samesite="lax", secure=scope["scheme"] == "https")
