"""Authentication middleware: rate and token, checked before the body is read."""

from __future__ import annotations

import asyncio
import base64
import binascii
import ipaddress
from contextlib import nullcontext

from starlette.types import ASGIApp, Receive, Scope, Send

from ..problems import DATABASE_ERRORS, ProblemError, database_unavailable, problem
from ..services.access import ANYBODY, NOBODY, READER, Principal
from ..settings import ServerSettings
from .asgi_scope import client_address, header
from .browser_guard import NO_TOKENS, refuse_foreign_page, refuse_proxied
from .limits import RateLimiter
from .login_cookie import read_cookie
from .principal_cache import PrincipalCache

__all__ = ["EXCHANGE_PATH", "AuthenticationMiddleware", "is_loopback", "is_page"]

EXCHANGE_PATH = "/v1/token-exchange"
_WITHOUT_TOKEN = {EXCHANGE_PATH, "/login", "/logout"}
"""Paths where somebody gets a token, or presents one in the body, which their routes verify."""

_PUBLIC_PATHS = {"/livez", "/readyz", "/v1/openapi.json", "/style.css"}
_PUBLIC_PATHS |= {"/favicon.svg", "/favicon.ico"}


def is_loopback(host: str) -> bool:
    """Return whether a host name or address can be reached from this machine only."""
    name = host.strip("[]")
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


class AuthenticationMiddleware:
    """ASGI middleware that checks a request's rate and its token."""

    def __init__(self, app: ASGIApp, principals: PrincipalCache, settings: ServerSettings) -> None:
        """Guard an app with the limits of the settings."""
        self._app = app
        self._principals = principals
        self._settings = settings
        self._rate_limiter = RateLimiter(settings.rate, settings.burst)
        self._guessing = asyncio.Semaphore(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with its principal in `scope["principal"]`, or refuse it."""
        if scope["type"] != "http" or scope["path"] in _PUBLIC_PATHS:
            await self._app(scope, receive, send)
            return
        try:
            refuse_foreign_page(scope)
            scope["principal"] = await self._authenticate(scope)
            _refuse_compression(scope)
        except ProblemError as error:
            headers = dict(error.headers or {})
            if error.status_code == 401:
                headers["WWW-Authenticate"] = _challenge(scope)
            await problem(error.status_code, error.detail, headers=headers)(scope, receive, send)
            return
        except DATABASE_ERRORS as error:
            await database_unavailable(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _authenticate(self, scope: Scope) -> Principal:
        if scope["path"] in _WITHOUT_TOKEN:
            self._rate_limiter.take(client_address(scope))
            return NOBODY
        token = _presented_token(scope)
        scope["credential"] = token or ""
        cached = None if token is None else self._principals.cached_principal(token)
        if cached is not None:
            self._rate_limiter.take(cached.name)
            return cached
        address = client_address(scope)
        if token is not None:
            return await self._verify(token, address)
        self._rate_limiter.take(address)
        return await self._without_token(scope)

    async def _verify(self, token: str, address: str) -> Principal:
        # Wrong tokens count for their address. Good ones behind the same address are not refused
        # for that, but share one look-up at a time with those who guess.
        turn = nullcontext() if self._rate_limiter.has_room(address) else self._guessing
        async with turn:
            principal = await self._principals.find(token)
        if principal is None:
            self._rate_limiter.take(address)
            raise ProblemError(
                401, "the token is wrong, expired or revoked: ask an admin for a new one"
            )
        self._rate_limiter.take(principal.name)
        return principal

    async def _without_token(self, scope: Scope) -> Principal:
        if await self._principals.tokens_exist():
            if self._settings.open_read:
                return READER
            raise ProblemError(
                401,
                "this server wants a token: set DEJAVU_CACHE_TOKEN or DEJAVU_CACHE_TOKEN_FILE"
                " (as a header: Authorization: Bearer TOKEN)",
            )
        # DNS rebinding: a web page can make its own name resolve to this machine and send requests
        # from a browser here, but its requests still carry that name.
        if not is_loopback(_without_port(header(scope, b"host") or "")):
            raise ProblemError(
                401, f"{NO_TOKENS}only requests to localhost are answered: create a token"
            )
        refuse_proxied(scope)
        return ANYBODY


def _refuse_compression(scope: Scope) -> None:
    if (header(scope, b"content-encoding") or "identity").lower() != "identity":
        raise ProblemError(415, "compressed bodies are not accepted: leave out Content-Encoding")


def is_page(scope: Scope) -> bool:
    """Return whether a request is for a page, and not for the protocol."""
    return not scope["path"].startswith("/v1/")


def _challenge(scope: Scope) -> str:
    if is_page(scope):
        return 'Basic realm="dejavu-cache: any user, the token as password"'
    return "Bearer"


def _presented_token(scope: Scope) -> str | None:
    authorization = header(scope, b"authorization")
    if authorization is None:
        return read_cookie(scope) if is_page(scope) else None
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    # Browsers send Basic and cookies unasked. Both are accepted for pages alone, whose forms carry
    # a proof that this server made them: another site's page could otherwise write with them.
    if scheme.lower() == "basic" and is_page(scope):
        try:
            return base64.b64decode(value, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return ""
    raise ProblemError(401, "the token goes into  Authorization: Bearer TOKEN")


def _without_port(host: str) -> str:
    name, _, port = host.rpartition(":")
    return name if port.isdigit() and not host.endswith("]") else host
