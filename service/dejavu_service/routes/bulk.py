"""Reads that every process sends at its start, on routes of their own for speed."""

from __future__ import annotations

import gzip
import re
from collections.abc import Awaitable, Callable

from fastapi import Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.routing import Match, Route
from starlette.types import Scope

from ..bulk_read.answer_cache import Answer
from ..bulk_read.answers import RecordReader, etag
from ..errors import NotFoundError
from ..middleware.asgi_scope import header
from ..server import Server
from ..services.access import NAMESPACE
from ..services.read_through import RecordView
from ..storage.contexts import Revision
from .common import Call

__all__ = ["bulk_read", "keyed_read", "quick_routes", "read_scenarios", "respond"]

_BULK_PATH = "/v1/{namespace}/contexts/{context}/records"
_NAMESPACE = re.compile(NAMESPACE)
_DIGEST = re.compile(r"[0-9a-f]{24}")
_NO_SCENARIOS = Answer("", b'{"scenarios": []}', is_gzipped=False)

_Load = Callable[[RecordReader, RecordView, Revision], Awaitable[Answer]]


async def bulk_read(call: Call, namespace: str, context: str, request: Request) -> Response:
    """Answer with all records of a context, or with 304 if the client has them.

    Raises:
        AccessDeniedError: The principal lacks the role `read`.
        NotFoundError: The context has no records.
    """
    return await _read(
        call,
        namespace,
        context,
        request,
        lambda reader, view, revision: reader.record_set(view, revision),
        "nothing is known of this context here: post records, or ask another namespace",
    )


async def keyed_read(
    call: Call, namespace: str, context: str, scenario: str, request: Request
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
        request,
        lambda reader, view, revision: reader.record(view, revision, scenario),
        "there is no record of this scenario",
    )


async def read_scenarios(call: Call, namespace: str, context: str, request: Request) -> Response:
    """Answer with the scenarios that have records in a context, or with 304.

    Raises:
        AccessDeniedError: The principal lacks the role `read`.
    """
    return await _read(
        call,
        namespace,
        context,
        request,
        lambda reader, view, revision: reader.scenarios(view, revision),
        None,
    )


async def _read(
    call: Call, namespace: str, context: str, request: Request, load: _Load, missing: str | None
) -> Response:
    """Answer with a part of a context; `missing` is said of one that is not there."""
    view = call.server.read_through.view(call.principal, namespace, context)
    reader, metrics = call.server.reader, call.server.metrics
    revision = await reader.revision(view)
    copy = header(request.scope, b"if-none-match")
    if revision is not None and _matches(copy, etag(revision)):
        metrics.unchanged.inc()
        return Response(status_code=304, headers=_headers(etag(revision)))
    answer = await load(reader, view, revision) if revision is not None else None
    if answer is None or answer.body is None:
        metrics.misses.inc()
        if missing is None:
            return await respond(_NO_SCENARIOS, request)
        raise NotFoundError(missing)
    metrics.hits.inc()
    if copy is None and revision is not None and missing is not None:
        reader.fetches[revision.id] += 1
    return await respond(answer, request)


def quick_routes(server: Server) -> list[Route]:
    """Create plain Starlette routes for the bulk read and for one record.

    FastAPI's handling of a route takes longer than the read itself.
    """

    async def read_all(request: Request) -> Response:
        namespace, context = _validate_path(request)
        request.scope["route"] = all_records
        call = Call(request.scope["principal"], server)
        return await bulk_read(call, namespace, context, request)

    async def read_one(request: Request) -> Response:
        namespace, context = _validate_path(request)
        request.scope["route"] = one_record
        call = Call(request.scope["principal"], server)
        return await keyed_read(call, namespace, context, request.path_params["scenario"], request)

    all_records = Route(_BULK_PATH, read_all, methods=["GET"])
    one_record = _PlainRoute(f"{_BULK_PATH}/{{scenario}}", read_one, methods=["GET"])
    return [all_records, one_record]


class _PlainRoute(Route):
    """A route for requests without a query; FastAPI validates the others."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope.get("query_string"):
            return Match.NONE, {}
        return super().matches(scope)


def _validate_path(request: Request) -> tuple[str, str]:
    parts = request.path_params
    digests = [parts["context"], *filter(None, [parts.get("scenario")])]
    if not (_NAMESPACE.fullmatch(parts["namespace"]) and all(map(_DIGEST.fullmatch, digests))):
        raise NotFoundError(
            "no such resource: a namespace is a short name, a digest 24 hexadecimal digits"
        )
    return parts["namespace"], parts["context"]


def _matches(if_none_match: str | None, tag: str) -> bool:
    if if_none_match is None:
        return False
    tags = {item.strip().removeprefix("W/") for item in if_none_match.split(",")}
    return if_none_match.strip() == "*" or tag in tags


def _headers(tag: str) -> dict[str, str]:
    headers = {"Vary": "Accept-Encoding, Authorization", "Cache-Control": "private, no-cache"}
    return {"ETag": tag, **headers} if tag else headers


async def respond(answer: Answer, request: Request) -> Response:
    """Send an answer that has a body, compressed if the client accepts that."""
    headers, body = _headers(answer.etag), answer.body or b""
    if answer.is_gzipped:
        if _accepts_gzip(header(request.scope, b"accept-encoding") or ""):
            headers["Content-Encoding"] = "gzip"
        else:
            body = await run_in_threadpool(gzip.decompress, body)
    return Response(body, headers=headers, media_type="application/json")


def _accepts_gzip(accept_encoding: str) -> bool:
    for item in accept_encoding.split(","):
        coding, _, weight = item.strip().lower().replace(" ", "").partition(";q=")
        if coding in ("gzip", "*"):
            return weight not in ("0", "0.0", "0.00", "0.000")
    return False
