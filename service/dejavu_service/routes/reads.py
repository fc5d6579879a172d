"""Routes that read a context's records, one of them, or its scenarios."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from dejavu_cache.model.record import Record, RecordSet
from dejavu_cache.model.scenario import Scenario

from ..errors import NotFoundError
from ..problems import RESPONSES
from ..services.reads import Answer, Part
from .common import (
    Call,
    ContextDigest,
    CurrentCall,
    Namespace,
    ScenarioDigest,
    json_response,
    responds_with,
)

__all__ = ["router"]

_CACHING = (
    (b"vary", b"Accept-Encoding, Authorization"),
    (b"cache-control", b"private, no-cache"),
)

_PIECE = 64 * 1024
"""Bytes that are expanded at once for a client that accepts no gzip."""
_GZIP_WINDOW = 31
"""What `zlib` calls a gzip stream with a window of any size."""

_OR_UNCHANGED: dict[int | str, dict[str, Any]] = {
    304: {"description": "Unchanged since the `If-None-Match` that was sent"}
}


class ReadRoute(APIRoute):
    """A route that FastAPI describes, and that Starlette alone finds and runs.

    What FastAPI does for its routes takes longer than the read itself.
    """

    matches = Route.matches
    handle = Route.handle

    def __init__(self, *args: Any, **options: Any) -> None:
        """Take the arguments of FastAPI's route."""
        super().__init__(*args, **options)
        self.app = self._respond

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["route"] = self  # for metrics and logs
        call = Call(scope["principal"], scope["app"].state.server)
        response = await self.endpoint(**scope["path_params"], request=Request(scope), call=call)
        await response(scope, receive, send)


class ScenarioList(BaseModel):
    """The scenarios that have records in a context."""

    scenarios: list[Scenario]


router = APIRouter(prefix="/v1", route_class=ReadRoute, responses=RESPONSES)
_CONTEXT = "/{namespace:namespace}/contexts/{context:digest}"


@router.get(
    f"{_CONTEXT}/records/{{scenario:digest}}", responses=responds_with(Record) | _OR_UNCHANGED
)
async def read_record(
    namespace: Namespace,
    context: ContextDigest,
    scenario: ScenarioDigest,
    request: Request,
    call: CurrentCall,
) -> Response:
    """Return one record."""
    missing = "there is no record of this scenario"
    return await _read(call, request, namespace, context, scenario, missing)


@router.get(f"{_CONTEXT}/records", responses=responds_with(RecordSet) | _OR_UNCHANGED)
async def read_records(
    namespace: Namespace, context: ContextDigest, request: Request, call: CurrentCall
) -> Response:
    """Return all records of a context."""
    missing = "nothing is known of this context here: post records, or ask another namespace"
    return await _read(call, request, namespace, context, "records", missing)


@router.get(f"{_CONTEXT}/scenarios", responses=responds_with(ScenarioList) | _OR_UNCHANGED)
async def read_scenarios(
    namespace: Namespace, context: ContextDigest, request: Request, call: CurrentCall
) -> Response:
    """Return the scenarios that have records in a context; none if there is no such context."""
    return await _read(call, request, namespace, context, "scenarios", None)


async def _read(
    call: Call, request: Request, namespace: str, context: str, part: Part, missing: str | None
) -> Response:
    """Answer with a part of a context, or with 304 if the client has it.

    Raises:
        AccessDeniedError: The principal lacks the role `read`.
        NotFoundError: There is nothing, of which `missing` is said.
    """
    reader = call.server.reader
    call.principal.require("read", namespace)
    sent = dict(request.scope["headers"])
    current = await reader.revision((namespace, context))
    answer, copy = None, sent.get(b"if-none-match")
    if current is not None:
        if copy is not None and _names(copy, f'"{current.revision}"'):
            return _respond(Answer(current.revision, None), b"")
        wanted = ((namespace, context), part, current.revision)
        answer = reader.recall(*wanted)
        if answer is None:
            async with call.server.rendering.turn(call.principal.name):
                answer = await reader.read(*wanted)
    if answer is None or answer.body is None:
        if missing is not None:
            raise NotFoundError(missing)
        return json_response('{"scenarios": []}')
    if copy is None and current is not None and missing is not None:
        reader.fetches[current.id] += 1
    return _respond(answer, sent.get(b"accept-encoding", b""))


def _names(if_none_match: bytes, tag: str) -> bool:
    """Return whether a header names an entity tag, or any."""
    named = if_none_match.decode("latin-1").split(",")
    return any(item.strip().removeprefix("W/") in ("*", tag) for item in named)


class _StoredResponse(Response):
    """A response whose headers are made: making them takes Starlette longer than sending them."""

    def __init__(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes = b"") -> None:
        self.status_code, self.raw_headers, self.body = status, headers, body
        self.background = None


def _respond(answer: Answer, accept_encoding: bytes) -> Response:
    """Send an answer, compressed if the client accepts that; one without a body is a 304."""
    headers = [*_CACHING, (b"etag", f'"{answer.revision}"'.encode())]
    body = answer.body
    if body is None:
        return _StoredResponse(304, headers)
    headers.append((b"content-type", b"application/json"))
    if answer.is_gzipped and not _accepts_gzip(accept_encoding):
        response = StreamingResponse(_expand(body))
        # A gzip stream ends with the length of what it expands to.
        length = int.from_bytes(body[-4:], "little")
        response.raw_headers = [*headers, (b"content-length", b"%d" % length)]
        return response
    if answer.is_gzipped:
        headers.append((b"content-encoding", b"gzip"))
    headers.append((b"content-length", b"%d" % len(body)))
    return _StoredResponse(200, headers, body)


def _expand(body: bytes) -> Iterator[bytes]:
    """Expand a gzip stream in pieces: whole, a large one would fill the memory."""
    stream = zlib.decompressobj(_GZIP_WINDOW)
    piece = stream.decompress(body, _PIECE)
    while piece:
        yield piece
        piece = stream.decompress(stream.unconsumed_tail, _PIECE)


@lru_cache(maxsize=64)
def _accepts_gzip(accept_encoding: bytes) -> bool:
    for item in accept_encoding.decode("latin-1").split(","):
        coding, _, weight = item.strip().lower().replace(" ", "").partition(";q=")
        if coding in ("gzip", "*"):
            return weight not in ("0", "0.0", "0.00", "0.000")
    return False
