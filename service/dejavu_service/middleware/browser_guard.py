"""Refusal of requests that a web page of another site makes a browser send."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.types import Scope

from ..problems import ProblemError
from .asgi_scope import header

__all__ = ["NO_TOKENS", "refuse_foreign_page", "refuse_proxied"]

NO_TOKENS = "without tokens, "
"""Beginning of what is said to those whom a server without tokens does not answer."""

_READS = {"GET", "HEAD"}
_FOREIGN_SITES = {"cross-site", "same-site"}
_PROXY_HEADERS = (b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip")


def refuse_foreign_page(scope: Scope) -> None:
    """Check that no other site's page sends a request, except for pages, which may be linked to.

    Browsers name the page's site in `Sec-Fetch-Site` or `Origin`, and no page can change either;
    programs send neither.

    Raises:
        ProblemError: 403.
    """
    if scope["method"] in _READS and not scope["path"].startswith("/v1/"):
        return
    site, origin = header(scope, b"sec-fetch-site"), header(scope, b"origin")
    if (site or "").lower() in _FOREIGN_SITES or not _is_own(origin, header(scope, b"host")):
        raise ProblemError(403, "a page of another site may not send this request")


def refuse_proxied(scope: Scope) -> None:
    """Check that a request to a server without tokens came through no proxy.

    Raises:
        ProblemError: 401.
    """
    if any(header(scope, name) is not None for name in _PROXY_HEADERS):
        raise ProblemError(
            401, f"{NO_TOKENS}no request that came through a proxy is answered: create a token"
        )


def _is_own(origin: str | None, host: str | None) -> bool:
    if origin is None:
        return True
    try:
        named = urlsplit(origin)
    except ValueError:
        return False
    return bool(named.netloc) and named.netloc.lower() == (host or "").lower()
