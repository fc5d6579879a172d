"""Bodies of requests: who may send one, how large, how many at a time, and their JSON."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from ..errors import AccessDeniedError
from ..problems import ProblemError
from ..services.access import EVERYWHERE, READER, Role
from ..services.json_text import InvalidJsonError, InvalidValueError, validate_json
from .limits import LONGEST_WAIT, Turns

__all__ = [
    "BodyTurns",
    "StrictRoute",
    "accepts",
    "body_chunks",
    "check_media_type",
    "read_body",
    "takes_own_turn",
]

_Endpoint = TypeVar("_Endpoint", bound=Callable[..., Any])
_Handler = Callable[[Request], Coroutine[Any, Any, Response]]

_SMALL = 16 * 1024
"""Bytes of a body that is parsed on the event loop, because a thread would cost more."""
_LARGE = 128 * 1024
"""Bytes of a body beyond which it is read only in its turn."""
_LARGE_AT_ONCE = 3
"""Large bodies in memory at a time, of which one principal has two at most."""


class BodyRule(NamedTuple):
    """The role that a route's body needs, its largest size, and whether the route writes."""

    role: Role
    max_bytes: int | None
    writes: bool


def accepts(
    role: Role, max_bytes: int | None = 64 * 1024, *, writes: bool = True
) -> Callable[[_Endpoint], _Endpoint]:
    """Declare who may send a body to an endpoint, which every endpoint with a body must do.

    Args:
        role: The role that is needed in the path's namespace, or in all if the path has none.
        max_bytes: The largest size; None for the server's setting `max_body`, the limit of all.
        writes: Whether the endpoint writes, which nobody may without a token of their own.
    """

    def declare(endpoint: _Endpoint) -> _Endpoint:
        vars(endpoint)["body_rule"] = BodyRule(role, max_bytes, writes)
        return endpoint

    return declare


def takes_own_turn(endpoint: _Endpoint) -> _Endpoint:
    """Declare that an endpoint reads its body as a stream, and takes its turn to write later."""
    vars(endpoint)["takes_own_turn"] = True
    return endpoint


class BodyTurns:
    """The turns of requests with bodies.

    Attributes:
        max_body: Bytes of the largest body.
        queue: The turns to write, by what is written to.
        imports: The turns to send an import, by principal: it takes room on the disk alone.
    """

    def __init__(self, max_body: int, writers: int) -> None:
        """Accept bodies of `max_body` bytes, and let `writers` write at a time."""
        self.max_body = max_body
        self.queue = Turns(writers)
        self.imports = Turns(writers)
        self._large = Turns(_LARGE_AT_ONCE)

    @asynccontextmanager
    async def turn_for(self, principal: str, size: int | None) -> AsyncIterator[float]:
        """Wait until a principal may send a body of this size, which the block reads and handles.

        Yields:
            The seconds for which the request may wait for further turns.

        Raises:
            ProblemError: 503, other large requests did not end in time.
        """
        if size is not None and size <= _LARGE:
            yield LONGEST_WAIT
            return
        began = time.monotonic()
        async with self._large.turn(principal):
            yield max(LONGEST_WAIT - (time.monotonic() - began), 0.0)


class _ParsedRequest(Request):
    """A request whose body was read and validated before FastAPI asks for it."""

    def __init__(self, request: Request, body: bytes, value: BaseModel | None) -> None:
        super().__init__(request.scope, request.receive)
        # FastAPI only asks whether there is a body, and for the value of its JSON.
        self._body = body[:1]
        self._value = value

    async def json(self) -> Any:
        return self._value


class StrictRoute(APIRoute):
    """A route that requires `application/json` and validates its body outside the event loop."""

    def get_route_handler(self) -> _Handler:
        """Return FastAPI's handler behind the checks of the body.

        Raises:
            TypeError: The endpoint has a body and does not declare who may send it.
        """
        handler = super().get_route_handler()
        if self.body_field is None:
            is_read = (self.methods or set()) <= {"GET", "HEAD"}
            has_turn = is_read or hasattr(self.endpoint, "takes_own_turn")
            return handler if has_turn else _write_in_turn(handler)
        rule = getattr(self.endpoint, "body_rule", None)
        if not isinstance(rule, BodyRule):
            raise TypeError(f"{self.path} has a body: decorate its endpoint with @accepts(role)")
        return _read_body_first(handler, rule, self.body_field.field_info.annotation)


def _write_in_turn(handler: _Handler) -> _Handler:
    async def handle_in_turn(request: Request) -> Response:
        turns: BodyTurns = request.app.state.server.bodies
        async with turns.queue.turn(_key(request, None)):
            return await handler(request)

    return handle_in_turn


def _read_body_first(handler: _Handler, rule: BodyRule, model: Any) -> _Handler:
    async def handle_strictly(request: Request) -> Response:
        principal = request.scope["principal"]
        principal.require(rule.role, request.path_params.get("namespace", EVERYWHERE))
        if rule.writes and principal is READER:
            raise AccessDeniedError("without a token you may only read here: send one")
        check_media_type(request)
        turns: BodyTurns = request.app.state.server.bodies
        longest = min(rule.max_bytes or turns.max_body, turns.max_body)
        async with turns.turn_for(principal.name, _declared_size(request, longest)) as seconds:
            body = await read_body(request, longest)
            value = await _validate(body, model)
            parsed = _ParsedRequest(request, body, value)
            del body
            if not rule.writes:
                return await handler(parsed)
            async with turns.queue.turn(_key(request, value), seconds):
                return await handler(parsed)

    return handle_strictly


def _key(request: Request, value: BaseModel | None) -> Hashable:
    """Return what a request writes to, as far as its path and its body's context tell."""
    context = getattr(value, "context", None)
    digest = getattr(context, "digest", context)  # Some bodies name a context by its digest.
    named = {**request.path_params, **({"context": digest} if digest else {})}
    return (named.get("namespace"), named.get("context") or tuple(named.items()))


async def _validate(body: bytes, model: type[BaseModel]) -> BaseModel | None:
    if not body:
        return None
    try:
        if len(body) <= _SMALL:
            return validate_json(body, model)
        return await run_in_threadpool(validate_json, body, model)
    except InvalidJsonError as error:
        raise ProblemError(400, f"the body is not JSON: {error}") from None
    except InvalidValueError as error:
        errors = [{**item, "loc": ("body", *item["loc"])} for item in error.errors]
        raise RequestValidationError(errors) from None


def check_media_type(request: Request) -> None:
    """Check that a body is JSON, which no page of another site can send unasked.

    Raises:
        ProblemError: 415.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise ProblemError(415, "the body must be JSON: send  Content-Type: application/json")


async def body_chunks(request: Request, max_bytes: int) -> AsyncIterator[bytes]:
    """Yield a body as it arrives, counted whatever the headers declare.

    Raises:
        ClientDisconnect: The client hung up before the end.
        ProblemError: 413, it is too long.
    """
    _declared_size(request, max_bytes)
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_bytes:
            raise _too_large(max_bytes)
        yield chunk


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Read a body into memory.

    Raises:
        ClientDisconnect: The client hung up before the end.
        ProblemError: 413, it is too long.
    """
    return b"".join([chunk async for chunk in body_chunks(request, max_bytes)])


def _declared_size(request: Request, max_bytes: int) -> int | None:
    """Return the size that the headers declare; None if they declare none.

    Raises:
        ProblemError: 413, it is too large.
    """
    declared = request.headers.get("content-length", "")
    size = int(declared) if declared.isdigit() else None
    if size is not None and size > max_bytes:
        raise _too_large(max_bytes)
    return size


def _too_large(max_bytes: int) -> ProblemError:
    return ProblemError(413, f"the body has over {max_bytes} bytes: send fewer records at a time")
