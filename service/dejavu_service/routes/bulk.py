"""Answers to reads of a whole context, of its scenarios or of one record."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Iterator
from functools import lru_cache

from fastapi import Response
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from ..bulk_read.answer_cache import Answer
from ..bulk_read.answers import RecordReader, etag
from ..errors import NotFoundError
from ..services.read_through import RecordView
from ..storage.contexts import Revision
from .common import Call

__all__ = ["bulk_read", "keyed_read", "read_scenarios", "respond"]

_NO_SCENARIOS = Answer("", b'{"scenarios": []}', is_gzipped=False)

_CACHING = ((b"vary", b"Accept-Encoding, Authorization"), (b"cache-control", b"private, no-cache"))
_JSON = (b"content-type", b"application/json")
_GZIPPED = (b"content-encoding", b"gzip")

_PIECE = 64 * 1024
"""Bytes of a body that are sent at once."""
_GZIP_WINDOW = 31
"""What `zlib` calls a gzip stream with a window of any size."""

_Load = Callable[[RecordReader, RecordView, Revision], Awaitable[Answer]]


async def bulk_read(call: Call, namespace: str, context: str, scope: Scope) -> Response:
    """Answer with all records of a context, or with 304 if the client has them.

    Raises:
        AccessDeniedError: The principal lacks the role `read`.
        NotFoundError: The context has no records.
    """
    return await _read(
        call,
        namespace,
        context,
        scope,
        lambda reader, view, revision: reader.record_set(view, revision),
        "nothing is known of this context here: post records, or ask another namespace",
    )


async def keyed_read(
    call: Call, namespace: str, context: str, scenario: str, scope: Scope
) -> Response:
    """Answer with one record, or with 304 if nothing of its context has changed.

    Raises:
        AccessDeniedError: The principal lacks the role `read`.
        NotFoundError: There is no record.
    """
    return await _read(
        call,
        namespace,
        context,
        scope,
        lambda reader, view, revision: reader.record(view, revision, scenario),
        "there is no record of this scenario",
    )


async def read_scenarios(call: Call, namespace: str, context: str, scope: Scope) -> Response:
    """Answer with the scenarios that have records in a context, or with 304.

    Raises:
        AccessDeniedError: The principal lacks the role `read`.
    """
    return await _read(
        call,
        namespace,
        context,
        scope,
        lambda reader, view, revision: reader.scenarios(view, revision),
        None,
    )


async def _read(
    call: Call, namespace: str, context: str, scope: Scope, load: _Load, missing: str | None
) -> Response:
    """Answer with a part of a context; `missing` is said of one that is not there."""
    view = call.server.read_through.view(call.principal, namespace, context)
    reader, metrics = call.server.reader, call.server.metrics
    revision = await reader.revision(view)
    copy = Headers(scope=scope).get("if-none-match")
    if revision is not None and _matches(copy, etag(revision)):
        metrics.unchanged.inc()
        return _StoredResponse(Answer(etag(revision), None), status=304)
    answer = await load(reader, view, revision) if revision is not None else None
    if answer is None or answer.body is None:
        metrics.misses.inc()
        if missing is None:
            return respond(_NO_SCENARIOS, scope)
        raise NotFoundError(missing)
    metrics.hits.inc()
    if copy is None and revision is not None and missing is not None:
        reader.fetches[revision.id] += 1
    return respond(answer, scope)


def _matches(if_none_match: str | None, tag: str) -> bool:
    if if_none_match is None:
        return False
    tags = {item.strip().removeprefix("W/") for item in if_none_match.split(",")}
    return if_none_match.strip() == "*" or tag in tags


def respond(answer: Answer, scope: Scope) -> Response:
    """Send an answer that has a body, compressed if the client accepts that."""
    if answer.is_gzipped and not _accepts_gzip(Headers(scope=scope).get("accept-encoding", "")):
        return _StoredResponse(answer, is_expanded=True)
    return _StoredResponse(answer)


class _StoredResponse(Response):
    """Response whose headers are encoded by hand, which takes a third of Starlette's time.

    A long body is sent in pieces, as fast as its client reads them: the others would have a copy
    of all of it each.
    """

    def __init__(self, answer: Answer, is_expanded: bool = False, status: int = 200) -> None:
        self._answer = answer  # what is being sent is not rendered for others again
        body = answer.body or b""
        self.body, self.status_code, self.background = body, status, None
        self._is_expanded = is_expanded
        self.raw_headers = [*_CACHING]
        if answer.etag:
            self.raw_headers.append((b"etag", answer.etag.encode()))
        if status == 200:
            # A gzip stream ends with the length of what it expands to.
            length = int.from_bytes(body[-4:], "little") if is_expanded else len(body)
            self.raw_headers += [_JSON, (b"content-length", b"%d" % length)]
            if answer.is_gzipped and not is_expanded:
                self.raw_headers.append(_GZIPPED)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        if len(self.body) <= _PIECE and not self._is_expanded:
            await super().__call__(scope, receive, send)
            return
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        if scope["method"] != "HEAD":
            for piece in self._pieces():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                await asyncio.sleep(0)  # `send` waits only for a client that reads slowly
        await send({"type": "http.response.body", "body": b""})

    def _pieces(self) -> Iterator[bytes]:
        if not self._is_expanded:
            for start in range(0, len(self.body), _PIECE):
                yield bytes(self.body[start : start + _PIECE])
            return
        stream = zlib.decompressobj(_GZIP_WINDOW)
        piece = stream.decompress(self.body, _PIECE)
        while piece:
            yield piece
            piece = stream.decompress(stream.unconsumed_tail, _PIECE)


@lru_cache(maxsize=64)
def _accepts_gzip(accept_encoding: str) -> bool:
    for item in accept_encoding.split(","):
        coding, _, weight = item.strip().lower().replace(" ", "").partition(";q=")
        if coding in ("gzip", "*"):
            return weight not in ("0", "0.0", "0.00", "0.000")
    return False
