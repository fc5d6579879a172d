"""Who asks: tokens are checked before a request's body is read, and remembered for a few seconds."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import time
from collections import OrderedDict
from typing import NamedTuple

from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Scope, Send

from ..bulk_read.single_flight import Shared
from ..problems import AWAY, ProblemError, away, problem
from ..services import tokens
from ..services.access import EVERYWHERE, Principal
from ..settings import Settings
from ..storage.database import Database
from ..storage.tokens import any_issued
from .asgi_scope import client, header
from .limits import Rate, limited

__all__ = ["ANYBODY", "Gate", "Identities", "is_loopback"]

ANYBODY = Principal("anybody", "admin", frozenset({EVERYWHERE}))
"""Everyone, while there is no token."""
_READER = Principal("a reader without a token", "read", frozenset({EVERYWHERE}))
_OPEN = {"/livez", "/readyz", "/v1/openapi.json", "/style.css"}
_MOST = 1000


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    name = host.strip("[]")
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


class _Seen(NamedTuple):
    who: Principal
    again: float
    """When to look it up once more."""
    until: float
    """When it is no longer trusted."""


class Identities:
    """Whose a token is, as the database last said.

    A token that is in use is looked up again before its time is over, by one for all: they would come together
    otherwise, with a connection each, and every answer would wait for them.
    """

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._ttl = settings.token_ttl
        self._open_read = settings.open_read
        self._seen: OrderedDict[str, _Seen] = OrderedDict()
        self._checks: Shared[str, Principal | None] = Shared()
        self._looks: Shared[None, bool] = Shared()
        self._issued = False
        self._looked_at = float("-inf")

    def known(self, presented: str) -> Principal | None:
        """Whose a token is, if that was looked up a moment ago."""
        seen, now = self._seen.get(presented), time.monotonic()
        if seen is None or seen.until <= now:
            return None
        if seen.again <= now:
            self._checks.start(presented, lambda: self._check(presented))
        return seen.who

    async def find(self, presented: str | None, host: str) -> Principal:
        """Whose a token is; without one, what everybody may.

        Raises:
            ProblemError: 401.
        """
        if presented is not None:
            return await self._checked(presented)
        if self._open_read and await self._any_issued():
            return _READER
        if await self._any_issued():
            raise ProblemError(401, "this server wants a token: send  Authorization: Bearer TOKEN")
        # A page in a browser here can make its own name mean this machine: it still names itself.
        if not is_loopback(_without_port(host)):
            raise ProblemError(
                401, "without tokens, only requests to localhost are answered: create a token"
            )
        return ANYBODY

    async def _checked(self, presented: str) -> Principal:
        who = self.known(presented) or await self._checks.get(
            presented, lambda: self._check(presented)
        )
        if who is None:
            raise ProblemError(
                401, "the token is wrong, expired or revoked: ask an admin for a new one"
            )
        return who

    async def _check(self, presented: str) -> Principal | None:
        seen, asked = self._seen, time.monotonic()
        checked = await run_in_threadpool(tokens.check, self._database, presented)
        if checked is None:
            seen.pop(presented, None)
            return None
        trusted = self._ttl if checked.expires_in is None else min(self._ttl, checked.expires_in)
        seen[presented] = _Seen(checked.who, asked + trusted / 2, asked + trusted)
        while len(seen) > _MOST:
            seen.popitem(last=False)
        return checked.who

    async def _any_issued(self) -> bool:
        if not self._issued and time.monotonic() - self._looked_at > self._ttl:
            self._issued = await self._looks.get(None, self._look)
        return self._issued

    async def _look(self) -> bool:
        asked = time.monotonic()
        found = await run_in_threadpool(self._find_any)
        self._looked_at = asked
        return found

    def _find_any(self) -> bool:
        with self._database.read() as connection:
            return any_issued(connection)

    def forget(self) -> None:
        """Looks everybody up again; what is being looked up now is not remembered."""
        self._seen, self._checks = OrderedDict(), Shared()
        self._looked_at = float("-inf")


class Gate:
    """ASGI middleware: the rate, the token and the body's size, in this order."""

    def __init__(self, app: ASGIApp, identities: Identities, settings: Settings) -> None:
        self._app = app
        self._identities = identities
        self._settings = settings
        self._rate = Rate(settings.rate, settings.burst)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Lets a request through with its principal in `scope["principal"]`, or answers it."""
        if scope["type"] != "http" or scope["path"] in _OPEN:
            await self._app(scope, receive, send)
            return
        try:
            scope["principal"] = await self._principal(scope)
            large = scope["path"].endswith("/import")
            receive = limited(
                scope, receive, self._settings.max_import if large else self._settings.max_body
            )
        except ProblemError as error:
            headers = dict(error.headers or {})
            if error.status_code == 401:
                headers["WWW-Authenticate"] = _challenge(scope)
            await problem(error.status_code, error.detail, headers=headers)(scope, receive, send)
            return
        except AWAY as error:
            await away(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _principal(self, scope: Scope) -> Principal:
        presented = _presented(scope)
        known = None if presented is None else self._identities.known(presented)
        # Guesses count on the address they come from.
        self._rate.take(known.name if known else client(scope))
        return known or await self._identities.find(presented, header(scope, b"host") or "")


def _is_page(scope: Scope) -> bool:
    return not scope["path"].startswith("/v1/")


def _challenge(scope: Scope) -> str:
    return (
        'Basic realm="dejavu-cache: any user, the token as password"'
        if _is_page(scope)
        else "Bearer"
    )


def _presented(scope: Scope) -> str | None:
    said = header(scope, b"authorization")
    if said is None:
        return None
    scheme, _, value = said.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    # Browsers can only do this; a page of another site cannot make them write with it.
    if scheme.lower() == "basic" and _is_page(scope):
        try:
            return base64.b64decode(value, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return ""
    raise ProblemError(401, "the token goes into  Authorization: Bearer TOKEN")


def _without_port(host: str) -> str:
    return (
        host.rpartition(":")[0]
        if host.rpartition(":")[2].isdigit() and not host.endswith("]")
        else host
    )
