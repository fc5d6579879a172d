"""Answers to reads of a whole context, of its scenarios or of one record."""

from __future__ import annotations

import gzip
from collections.abc import Awaitable, Callable
from functools import lru_cache

from fastapi import Response
from starlette.concurrency import run_in_threadpool
from starlette.types import Scope

from ..bulk_read.answer_cache import Answer
from ..bulk_read.answers import RecordReader, etag
from ..errors import NotFoundError
from ..middleware.asgi_scope import header
from ..services.read_through import RecordView
from ..storage.contexts import Revision
from .common import Call

__all__ = ["bulk_read", "keyed_read", "read_scenarios", "respond"]

_NO_SCENARIOS = Answer("", b'{"scenarios": []}', is_gzipped=False)

_CACHING = ((b"vary", b"Accept-Encoding, Authorization"), (b"cache-control", b"private, no-cache"))
_JSON = (b"content-type", b"application/json")
_GZIPPED = (b"content-encoding", b"gzip")

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
    copy = header(scope, b"if-none-match")
    if revision is not None and _matches(copy, etag(revision)):
        metrics.unchanged.inc()
        return _StoredResponse(etag(revision), b"", is_gzipped=False, status=304)
    answer = await load(reader, view, revision) if revision is not None else None
    if answer is None or answer.body is None:
        metrics.misses.inc()
        if missing is None:
            return await respond(_NO_SCENARIOS, scope)
        raise NotFoundError(missing)
    metrics.hits.inc()
    if copy is None and revision is not None and missing is not None:
        reader.fetches[revision.id] += 1
    return await respond(answer, scope)


def _matches(if_none_match: str | None, tag: str) -> bool:
    if if_none_match is None:
        return False
    tags = {item.strip().removeprefix("W/") for item in if_none_match.split(",")}
    return if_none_match.strip() == "*" or tag in tags


async def respond(answer: Answer, scope: Scope) -> Response:
    """Send an answer that has a body, compressed if the client accepts that."""
    body, is_gzipped = answer.body or b"", answer.is_gzipped
    if is_gzipped and not _accepts_gzip(header(scope, b"accept-encoding") or ""):
        body, is_gzipped = await run_in_threadpool(gzip.decompress, body), False
    return _StoredResponse(answer.etag, body, is_gzipped)


class _StoredResponse(Response):
    """Response whose headers are encoded by hand, which takes a third of Starlette's time."""

    def __init__(self, tag: str, body: bytes, is_gzipped: bool, status: int = 200) -> None:
        self.body, self.status_code, self.background = body, status, None
        self.raw_headers = [*_CACHING]
        if tag:
            self.raw_headers.append((b"etag", tag.encode()))
        if status == 200:
            self.raw_headers += [_JSON, (b"content-length", b"%d" % len(body))]
        if is_gzipped:
            self.raw_headers.append(_GZIPPED)


@lru_cache(maxsize=64)
def _accepts_gzip(accept_encoding: str) -> bool:
    for item in accept_encoding.split(","):
        coding, _, weight = item.strip().lower().replace(" ", "").partition(";q=")
        if coding in ("gzip", "*"):
            return weight not in ("0", "0.0", "0.00", "0.000")
    return False
