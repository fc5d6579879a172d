"""The server's objects, and the gate that each request passes: who may ask, how much, how often.

At the gate a request gets an id, its place among those in progress, its time and its principal,
before anything of its body is read; and it is counted and logged, whatever its end. The principals
of tokens are cached, so that a request whose token was seen costs one look-up in a dict.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Hashable, Mapping
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakValueDictionary

import anyio
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from . import errors
from .identities import IdentityExchange
from .monitoring import Metrics
from .problems import ANSWERED_ERRORS, problem, respond_to
from .services import tokens
from .services.access import NOBODY, READER, Principal
from .services.reads import RecordReader
from .settings import ServerSettings
from .storage.database import Database
from .storage.lookups import SingleFlight
from .storage.schema import SchemaState

LOGIN_COOKIE = "dejavu_token"
"""The cookie with which a browser presents the token that somebody logged in with."""

TOKEN_SECONDS = 5.0
"""Seconds for which a looked-up token is trusted, so for which one that ended may still work."""
LONGEST_WAIT = 10.0
"""Seconds that a request waits for a turn, of which it takes two at most.

Its client shall get a 503 that says when to come again before it, or a proxy, gives the answer up.
"""
_WRITERS, _OF_ONE_NAMESPACE = 8, 4
"""Requests that write at a time, each over a connection to the database."""
_BODIES = 3
"""Large bodies in memory at a time, of which one principal has two at most: each has up to 4 MiB,
and what is wrong with it may take 50 MiB to say."""
_RENDERED = 4
"""Pages, lists, and answers with records, made at a time: each may take long and much memory."""
_TRANSFERS = 16
"""Imports and exports at a time: each takes memory until its client has sent or read it."""
_SHARE = 0.9
"""Share of the requests in progress that one caller may have; the rest is for the others."""
_LOOK_UPS = 8
"""Tokens that are looked up at a time, of which two for one caller: somebody may be guessing."""
_SECONDS = 50.0
"""Seconds from a request's head to its answer, and between two of its pieces; clients wait 60."""
_LONG_SECONDS = 3600.0
"""The same for requests that concern a whole namespace."""
_MAX_TOKENS = 1000
"""Tokens whose principals are cached."""
_LONGEST_PATH = 500

_HEALTH = {"/livez", "/readyz"}
_PUBLIC = {"/v1/openapi.json", "/style.css", "/favicon.svg", "/favicon.ico"}
SETS = "/sets"
"""Where signed sets are, for everybody: they are trusted by their key."""
_WITHOUT_TOKEN = {*_PUBLIC, tokens.EXCHANGE_PATH, "/login", "/logout"}
"""At the last three somebody gets a token, or presents one in the body, which routes verify."""
_LONG = re.compile(r"/v1/[^/]+/(import|export|promote|quarantines(/.*)?)")
_EXPORT = "/v1/{namespace}/export"
_METHODS = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"}
_PROXY_HEADERS = {b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip"}
_COOKIE = re.compile(rf"(?:^|;)\s*{LOGIN_COOKIE}=([A-Za-z0-9_-]{{1,200}})\s*(?=;|$)")
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")

_logger = logging.getLogger("dejavu_service.requests")


class Server:
    """The settings, the database, the caches and the turns of one server."""

    def __init__(self, settings: ServerSettings) -> None:
        """Create the server's objects without connecting to the database.

        Raises:
            SettingsError: The rules of issuers are wrong.
        """
        self.settings = settings
        self.database = Database(settings.database)
        self.principals = PrincipalCache(self.database)
        self.writing = Turns(_WRITERS, _OF_ONE_NAMESPACE)
        self.bodies = Turns(_BODIES, 2)
        self.rendering = Turns(_RENDERED, _RENDERED - 1)
        self.transfers = Turns(_TRANSFERS, 2)
        self.identities = None if settings.oidc is None else IdentityExchange(settings.oidc)
        self.reader = RecordReader(self.database)
        self.metrics = Metrics(self.database)
        self.readiness: SingleFlight[None, SchemaState] = SingleFlight()
        self.stopping = asyncio.Event()
        """Set once the server shall get no more requests."""

    async def close(self) -> None:
        """Close all connections to the database."""
        await self.reader.lookups.close()
        self.database.close()


class Gate:
    """ASGI middleware that admits requests, and counts and logs each of them.

    Whether the server lives and is ready is answered in any case.
    """

    def __init__(self, app: ASGIApp, server: Server) -> None:
        """Guard an app."""
        self._app, self._server = app, server
        self._most_of_each = max(1, int(_SHARE * server.settings.max_concurrent_requests))
        self._held: Counter[str] = Counter()
        """By caller, the requests in progress."""
        self._in_progress = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, with its `principal` and `caller` in its scope, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        passage = _Passage(scope, send)
        try:
            if scope["path"] in _HEALTH:
                await self._app(scope, receive, passage.send)
            else:
                await self._admit(scope, receive, passage)
        except ClientDisconnect:
            # Nobody is left to answer; the log says so by the number that nginx gave to this.
            passage.status = passage.status or 499
        except Exception as error:
            answer = passage.answer(error)
            if answer is not None:
                await answer(scope, receive, passage.send)
        finally:
            self._log(passage)

    async def _admit(self, scope: Scope, receive: Receive, passage: _Passage) -> None:
        """Pass a request on if there is room for it, for as long as it may take."""
        if self._in_progress >= self._server.settings.max_concurrent_requests:
            raise errors.UnavailableError("the server has too many requests now: try again")
        self._in_progress += 1
        loop = asyncio.get_running_loop()
        passage.timer = loop.call_later(passage.seconds, passage.end)
        try:
            scope["principal"] = await self._authenticate(scope, passage)
            scope["caller"] = passage.caller
            await self._app(scope, receive, passage.send)
        except asyncio.CancelledError:
            if not passage.is_overdue:
                raise
            # An answer that has begun is cut off by returning: the server closes its connection.
            if not passage.status:
                said = f"the request took over {passage.seconds:g} s: try again"
                raise errors.UnavailableError(said) from None
        finally:
            passage.timer.cancel()
            self._in_progress -= 1
            self._hold(passage, None)

    def _hold(self, passage: _Passage, caller: str | None) -> None:
        """Count a request for its caller, instead of the one that it was counted for.

        Raises:
            TooManyError: The caller has its share of the requests that may be in progress.
        """
        if passage.caller is not None:
            self._held[passage.caller] -= 1
            if not self._held[passage.caller]:
                del self._held[passage.caller]
        passage.caller = caller
        if caller is None:
            return
        self._held[caller] += 1
        if self._held[caller] > self._most_of_each:
            said = f"over {self._most_of_each} of your requests are in progress: wait for them"
            raise errors.TooManyError(said)

    async def _authenticate(self, scope: Scope, passage: _Passage) -> Principal:
        """Return who sends a request, for whom it is counted.

        Raises:
            ServiceError: The request is refused.
        """
        sent: dict[bytes, bytes] = dict(scope["headers"])
        _refuse_foreign_page(scope, sent)
        if sent.get(b"content-encoding", b"identity").lower() != b"identity":
            raise errors.BadMediaError(
                "compressed bodies are not accepted: leave out Content-Encoding"
            )
        if scope["path"] in _WITHOUT_TOKEN or scope["path"].startswith(f"{SETS}/"):
            self._hold(passage, passage.address)
            return NOBODY
        principals = self._server.principals
        token = scope["credential"] = _presented_token(scope, sent)
        principal = principals.recall(token)
        if token is None or principal is None:
            # Guesses count for their address, and use up nothing of a token that is known.
            self._hold(passage, passage.address)
            principal = principal or await principals.find(token, passage.address)
        if token is None:
            return self._without_token(principal, sent)
        if principal is None:
            raise errors.UnauthenticatedError(
                "the token is wrong, expired or revoked: ask an admin for a new one"
            )
        self._hold(passage, principal.name)
        return principal

    def _without_token(self, principal: Principal | None, sent: Mapping[bytes, bytes]) -> Principal:
        if principal is None:
            if self._server.settings.open_read:
                return READER
            raise errors.UnauthenticatedError(
                "this server wants a token: set DEJAVU_CACHE_TOKEN or DEJAVU_CACHE_TOKEN_FILE"
                " (as a header: Authorization: Bearer TOKEN)"
            )
        # DNS rebinding: a web page can make its own name resolve to this machine and send requests
        # from a browser here, but its requests still carry that name.
        host = sent.get(b"host", b"").decode("latin-1")
        name, _, port = host.rpartition(":")
        if not is_loopback(name if port.isdigit() and not host.endswith("]") else host):
            raise errors.AccessDeniedError(
                "without tokens, only requests to localhost are answered: create a token"
            )
        if not _PROXY_HEADERS.isdisjoint(sent):
            raise errors.AccessDeniedError(
                "without tokens, no request that came through a proxy is answered: create a token"
            )
        return principal

    def _log(self, passage: _Passage) -> None:
        seconds = time.monotonic() - passage.began
        scope, status = passage.scope, passage.status
        template = getattr(scope.get("route"), "path_format", "(none)")
        # Clients may invent methods; an unbounded set of labels would fill Prometheus' memory.
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._server.metrics.count_request(method, template, status, seconds)
        # A fleet reads all day long: successful reads are logged at the level `debug` only, except
        # exports, by which somebody takes everything.
        is_read = method == "GET" and status < 400 and template != _EXPORT
        level = logging.DEBUG if is_read else logging.INFO
        if _logger.isEnabledFor(level):
            fields = passage.fields | {
                "method": scope["method"],
                "status": status,
                "ms": round(seconds * 1000, 2),
                "client": passage.address,
                "who": getattr(scope.get("principal"), "name", None),
            }
            _logger.log(level, "answered", extra={"fields": fields})


class _Passage:
    """A request on its way through the gate, and what was sent of its answer.

    Attributes:
        address: That which the request came from.
        caller: For whom it is counted: its principal, or its address if it has none.
        status: The status of the answer; 0 before it has begun.
        began: When the request came.
        seconds: Those to the answer, in which its body comes, and between two of its pieces.
        timer: It ends the request when its time is over, which makes it overdue.
    """

    timer: asyncio.TimerHandle

    def __init__(self, scope: Scope, send: Send) -> None:
        self.scope, self._send, self.status = scope, send, 0
        self.address = scope["client"][0] if scope.get("client") else "unknown"
        self.caller: str | None = None
        sent_id = dict(scope["headers"]).get(b"x-request-id", b"")
        is_fit = _REQUEST_ID.fullmatch(sent_id)
        self.request_id: bytes = sent_id if is_fit else secrets.token_hex(8).encode()
        self.seconds = _LONG_SECONDS if _LONG.fullmatch(scope["path"]) else _SECONDS
        self.began, self.is_overdue = time.monotonic(), False
        self._task = asyncio.current_task()

    def end(self) -> None:
        """End the request, whose time is over."""
        self.is_overdue = True
        if self._task is not None:
            self._task.cancel()

    async def send(self, message: Message) -> None:
        """Send a part of the answer, with the request's id."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message["headers"], (b"x-request-id", self.request_id)]
        elif message.get("more_body"):
            self.timer.cancel()
            self.timer = asyncio.get_running_loop().call_later(self.seconds, self.end)
        await self._send(message)

    @property
    def fields(self) -> dict[str, Any]:
        """What each line of the log says of a request."""
        path: str = self.scope["path"]
        shown = path if len(path) <= _LONGEST_PATH else f"{path[:_LONGEST_PATH]}…"
        return {"request": self.request_id.decode(), "path": shown}

    def answer(self, error: Exception) -> ASGIApp | None:
        """Return the answer to a request that ended with an error; None if one has begun."""
        is_foreseen = isinstance(error, ANSWERED_ERRORS)
        if not is_foreseen:
            _logger.exception("unforeseen", extra={"fields": self.fields})
        elif self.status:
            # The server closes the connection, by which the client notices it.
            cause = {"error": str(error).partition("\n")[0]}
            _logger.warning("an answer was cut off", extra={"fields": self.fields | cause})
        if self.status:
            return None
        if is_foreseen:
            return respond_to(error)
        name = self.request_id.decode()
        return problem(500, f"this should not happen: tell the server's admin about request {name}")


class PrincipalCache:
    """Principals of tokens, as the database had them at most `TOKEN_SECONDS` ago."""

    def __init__(self, database: Database) -> None:
        """Cache look-ups in a database."""
        self._database = database
        self._looking_up: SingleFlight[str | None, Principal | None] = SingleFlight()
        self._turns = Turns(_LOOK_UPS, 2)
        self._entries: OrderedDict[str | None, tuple[Principal, float]] = OrderedDict()
        """By token, or None for none, its principal and when the entry ends."""

    def recall(self, presented: str | None) -> Principal | None:
        """Return the principal of a token, or of none, that was looked up a moment ago."""
        principal, until = self._entries.get(presented, (None, 0.0))
        return principal if time.monotonic() < until else None

    async def find(self, presented: str | None, caller: str) -> Principal | None:
        """Return the principal of a token that a caller presents; None if it is no good.

        Those who present the same token, or none, share one look-up, and its caller's turn.
        """
        return self.recall(presented) or await self._looking_up.get(
            presented, lambda: self._look_up(presented, caller)
        )

    async def _look_up(self, presented: str | None, caller: str) -> Principal | None:
        started = time.monotonic()
        async with self._turns.turn(caller):
            principal = await run_in_threadpool(tokens.verify, self._database, presented)
        if principal is not None:
            self._entries[presented] = principal, started + TOKEN_SECONDS
            while len(self._entries) > _MAX_TOKENS:
                self._entries.popitem(last=False)
        return principal


class Turns:
    """Turns for requests: `of_each` for each key at a time, and `total` for all keys.

    Of each caller, one request at a time stands in line, so that none is behind all of another's.
    A request that waits here holds no thread, no connection to the database and no memory.
    """

    def __init__(self, total: int, of_each: int) -> None:
        """Give `total` turns at a time, of which `of_each` for the same key."""
        self._all = asyncio.Semaphore(total)
        self._of_each = of_each
        self._by_key: WeakValueDictionary[Hashable, asyncio.Semaphore] = WeakValueDictionary()
        self._callers: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def turn(self, key: Hashable, caller: Hashable = None) -> AsyncIterator[None]:
        """Wait for a turn of a caller, by default the key, and hold it within the block.

        Raises:
            UnavailableError: The requests before this one did not end in time.
        """
        queue = self._by_key.setdefault(key, asyncio.Semaphore(self._of_each))
        line = self._callers.setdefault(caller or key, asyncio.Lock())
        taken: list[asyncio.Semaphore] = []
        try:
            with anyio.move_on_after(LONGEST_WAIT):
                async with line:
                    for semaphore in (queue, self._all):
                        await semaphore.acquire()
                        taken.append(semaphore)
            if len(taken) < 2:
                raise errors.UnavailableError("other requests of this kind take long: try again")
            yield
        finally:
            for semaphore in taken:
                semaphore.release()


def is_page(scope: Scope) -> bool:
    """Return whether a request is for a page, and not for the protocol."""
    return not scope["path"].startswith("/v1/")


def is_loopback(host: str) -> bool:
    """Return whether a host name or address can be reached from this machine only."""
    name = host.strip("[]")
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def _refuse_foreign_page(scope: Scope, sent: Mapping[bytes, bytes]) -> None:
    """Check that no other site's page sends a request, except for pages, which may be linked to.

    Browsers name the page's site in `Sec-Fetch-Site` or `Origin`, and no page can change either;
    programs send neither.

    Raises:
        AccessDeniedError: Another site's page does.
    """
    if scope["method"] in ("GET", "HEAD") and is_page(scope):
        return
    origin, own = sent.get(b"origin"), sent.get(b"host", b"(none)").lower()
    is_foreign = origin is not None and origin.lower().partition(b"://")[2] != own
    if is_foreign or sent.get(b"sec-fetch-site", b"").lower() in (b"cross-site", b"same-site"):
        raise errors.AccessDeniedError("a page of another site may not send this request")


def _presented_token(scope: Scope, sent: Mapping[bytes, bytes]) -> str | None:
    """Return the token of a request; None if it presents none.

    Browsers send cookies unasked. They count for pages alone, which change nothing: another site's
    page could otherwise write with them.

    Raises:
        UnauthenticatedError: It is presented in another way.
    """
    if b"authorization" not in sent:
        cookie = sent.get(b"cookie", b"").decode("latin-1")
        found = _COOKIE.search(cookie) if is_page(scope) else None
        return found.group(1) if found else None
    scheme, _, value = sent[b"authorization"].decode("latin-1").partition(" ")
    if scheme.lower() != "bearer":
        raise errors.UnauthenticatedError("the token goes into  Authorization: Bearer TOKEN")
    return value.strip()
