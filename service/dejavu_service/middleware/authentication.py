"""Authentication middleware: who sends a request, checked with its rate before its body is read.

A request of another site's page is refused first, then one without a valid token. The principals of
tokens are cached, so that a request whose token was seen costs one look-up in a dict.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import ipaddress
import re
import time
from collections import OrderedDict
from contextlib import nullcontext
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ..problems import DATABASE_ERRORS, ProblemError, problem, respond_to
from ..services import tokens
from ..services.access import ANYBODY, NOBODY, READER, Principal
from ..services.single_flight import SingleFlight
from ..settings import ServerSettings
from ..storage.database import Database
from .limits import RateLimiter

__all__ = [
    "EXCHANGE_PATH",
    "LOGIN_COOKIE",
    "NO_TOKENS",
    "AuthenticationMiddleware",
    "PrincipalCache",
    "client_address",
    "is_loopback",
    "is_page",
]

EXCHANGE_PATH = "/v1/token-exchange"
NO_TOKENS = "without tokens, "
"""Beginning of what is said to those whom a server without tokens does not answer."""
LOGIN_COOKIE = "dejavu_token"
"""The cookie with which a browser presents the token that somebody logged in with."""

_COOKIE = re.compile(rf"(?:^|;)\s*{LOGIN_COOKIE}=([A-Za-z0-9_-]{{1,200}})\s*(?=;|$)")
_WITHOUT_TOKEN = {EXCHANGE_PATH, "/login", "/logout"}
"""Paths where somebody gets a token, or presents one in the body, which their routes verify."""
_PUBLIC_PATHS = {"/livez", "/readyz", "/v1/openapi.json", "/style.css"}
_PUBLIC_PATHS |= {"/favicon.svg", "/favicon.ico"}
_PROXY_HEADERS = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
_RARE_HEADERS = {b"origin", b"sec-fetch-site", b"content-encoding"}
"""Headers that programs leave out, and for which some requests are refused."""
_MAX_TOKENS = 1000
"""Tokens whose principals are cached."""


class PrincipalCache:
    """Principals of tokens, as the database had them at most `ttl` seconds ago.

    Attributes:
        entries: By token, its principal and when the entry ends; by None, whom a request without a
            token comes from, which is nobody as soon as there are tokens.
    """

    def __init__(self, database: Database, ttl: float) -> None:
        """Cache look-ups in a database for `ttl` seconds."""
        self._database = database
        self._ttl = ttl
        self._looking_up: SingleFlight[str | None, Principal | None] = SingleFlight()
        self.entries: OrderedDict[str | None, tuple[Principal | None, float]] = OrderedDict()

    async def find(self, presented: str | None) -> Principal | None:
        """Return the principal of a token; None if it is wrong, expired or revoked."""
        principal, until = self.entries.get(presented, (None, 0.0))
        if time.monotonic() < until:
            return principal
        return await self._looking_up.get(presented, lambda: self._look_up(presented))

    def clear(self) -> None:
        """Drop all entries, and the results of look-ups in progress."""
        self.entries, self._looking_up = OrderedDict(), SingleFlight()

    async def _look_up(self, presented: str | None) -> Principal | None:
        # `clear` replaces the dict: a look-up that began before it must not write to the new one.
        entries, started = self.entries, time.monotonic()
        if presented is None:
            principal = await run_in_threadpool(self._find_anybody)
            entries[None] = principal, started + self._ttl
            return principal
        verified = await run_in_threadpool(tokens.verify, self._database, presented)
        if verified is None:
            entries.pop(presented, None)
            return None
        ttl = self._ttl if verified.expires_in is None else min(self._ttl, verified.expires_in)
        entries[presented] = verified.principal, started + ttl
        while len(entries) > _MAX_TOKENS:
            entries.popitem(last=False)
        return verified.principal

    def _find_anybody(self) -> Principal | None:
        with self._database.read() as connection:
            return None if tokens.any_issued(connection) else ANYBODY


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
        sent = dict(scope["headers"])
        scheme, _, token = sent.get(b"authorization", b"").decode("latin-1").partition(" ")
        known, until = self._principals.entries.get(token, (None, 0.0))
        try:
            is_plain = scheme == "Bearer" and _RARE_HEADERS.isdisjoint(sent)
            if known is not None and is_plain and time.monotonic() < until:
                scope["principal"], scope["credential"] = known, token
                self._rate_limiter.take(known.name)
            else:
                scope["principal"] = await self._authenticate(scope, Headers(scope=scope))
        except ProblemError as error:
            added = dict(error.headers or {})
            if error.status_code == 401:
                added["WWW-Authenticate"] = (
                    'Basic realm="dejavu-cache: any user, the token as password"'
                    if is_page(scope)
                    else "Bearer"
                )
            await problem(error.status_code, error.detail, headers=added)(scope, receive, send)
            return
        except DATABASE_ERRORS as error:
            await respond_to(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _authenticate(self, scope: Scope, headers: Headers) -> Principal:
        _refuse_foreign_page(scope, headers)
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise ProblemError(
                415, "compressed bodies are not accepted: leave out Content-Encoding"
            )
        if scope["path"] in _WITHOUT_TOKEN:
            self._rate_limiter.take(client_address(scope))
            return NOBODY
        token = _presented_token(scope, headers)
        scope["credential"] = token or ""
        if token is None:
            self._rate_limiter.take(client_address(scope))
            return await self._without_token(headers)
        address = client_address(scope)
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

    async def _without_token(self, headers: Headers) -> Principal:
        principal = await self._principals.find(None)
        if principal is None:
            if self._settings.open_read:
                return READER
            raise ProblemError(
                401,
                "this server wants a token: set DEJAVU_CACHE_TOKEN or DEJAVU_CACHE_TOKEN_FILE"
                " (as a header: Authorization: Bearer TOKEN)",
            )
        # DNS rebinding: a web page can make its own name resolve to this machine and send requests
        # from a browser here, but its requests still carry that name.
        if not is_loopback(_without_port(headers.get("host", ""))):
            raise ProblemError(
                401, f"{NO_TOKENS}only requests to localhost are answered: create a token"
            )
        if any(name in headers for name in _PROXY_HEADERS):
            raise ProblemError(
                401, f"{NO_TOKENS}no request that came through a proxy is answered: create a token"
            )
        return principal


def is_page(scope: Scope) -> bool:
    """Return whether a request is for a page, and not for the protocol."""
    return not scope["path"].startswith("/v1/")


def client_address(scope: Scope) -> str:
    """Return the address that a request came from."""
    return scope["client"][0] if scope.get("client") else "unknown"


def is_loopback(host: str) -> bool:
    """Return whether a host name or address can be reached from this machine only."""
    name = host.strip("[]")
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def _without_port(host: str) -> str:
    name, _, port = host.rpartition(":")
    return name if port.isdigit() and not host.endswith("]") else host


def _refuse_foreign_page(scope: Scope, headers: Headers) -> None:
    """Check that no other site's page sends a request, except for pages, which may be linked to.

    Browsers name the page's site in `Sec-Fetch-Site` or `Origin`, and no page can change either;
    programs send neither.

    Raises:
        ProblemError: 403.
    """
    if scope["method"] in ("GET", "HEAD") and is_page(scope):
        return
    is_own = True
    if (origin := headers.get("origin")) is not None:
        try:
            named = urlsplit(origin).netloc.lower()
        except ValueError:
            named = ""
        is_own = bool(named) and named == headers.get("host", "").lower()
    site = headers.get("sec-fetch-site", "").lower()
    if site in ("cross-site", "same-site") or not is_own:
        raise ProblemError(403, "a page of another site may not send this request")


def _presented_token(scope: Scope, headers: Headers) -> str | None:
    authorization = headers.get("authorization")
    if authorization is None:
        found = _COOKIE.search(headers.get("cookie", "")) if is_page(scope) else None
        return found.group(1) if found else None
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
