"""The bulk read, which every process sends at its start, on a route of its own for speed."""

from __future__ import annotations

import gzip
import re

from fastapi import Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.routing import Route

from ..bulk_read.answers import Answer, etag
from ..errors import NotFoundError
from ..middleware.asgi_scope import header
from ..server import Server
from ..services.access import NAMESPACE
from .common import Call

__all__ = ["PATH", "bulk_read", "quick_route"]

PATH = "/v1/{namespace}/contexts/{context}/records"
_NAMESPACE = re.compile(NAMESPACE)
_DIGEST = re.compile(r"[0-9a-f]{24}")


async def bulk_read(call: Call, namespace: str, context: str, request: Request) -> Response:
    """Answer with all records of a context, or with 304 if the client has them.

    Raises:
        AccessDeniedError: The principal lacks the role `read`.
        NotFoundError: The context has no records.
    """
    call.principal.require("read", namespace)
    reader, metrics, key = call.server.reader, call.server.metrics, (namespace, context)
    revision = await reader.revision(key)
    if revision is not None and _matches(header(request.scope, b"if-none-match"), etag(revision)):
        metrics.unchanged.inc()
        return Response(status_code=304, headers=_headers(etag(revision)))
    answer = await reader.answer(key, revision) if revision is not None else None
    (metrics.hits if answer else metrics.misses).inc()
    if answer is None:
        raise NotFoundError(
            "nothing is known of this context here: post records, or ask another namespace"
        )
    return await _respond(answer, header(request.scope, b"accept-encoding") or "")


def quick_route(server: Server) -> Route:
    """Create a plain Starlette route for the bulk read.

    FastAPI's handling of a route takes longer than the read itself.
    """

    async def read(request: Request) -> Response:
        namespace, context = request.path_params["namespace"], request.path_params["context"]
        if not (_NAMESPACE.fullmatch(namespace) and _DIGEST.fullmatch(context)):
            raise NotFoundError(
                "no such resource: a namespace is a short name, a context 24 hexadecimal digits"
            )
        request.scope["route"] = route
        call = Call(request.scope["principal"], server)
        return await bulk_read(call, namespace, context, request)

    route = Route(PATH, read, methods=["GET"])
    return route


def _matches(if_none_match: str | None, tag: str) -> bool:
    if if_none_match is None:
        return False
    tags = {item.strip().removeprefix("W/") for item in if_none_match.split(",")}
    return if_none_match.strip() == "*" or tag in tags


def _headers(tag: str) -> dict[str, str]:
    return {
        "ETag": tag,
        "Vary": "Accept-Encoding, Authorization",
        "Cache-Control": "private, no-cache",
    }


async def _respond(answer: Answer, accept_encoding: str) -> Response:
    headers = _headers(answer.etag)
    if _accepts_gzip(accept_encoding):
        headers["Content-Encoding"] = "gzip"
        return Response(answer.gzipped, headers=headers, media_type="application/json")
    plain = await run_in_threadpool(gzip.decompress, answer.gzipped)
    return Response(plain, headers=headers, media_type="application/json")


def _accepts_gzip(accept_encoding: str) -> bool:
    for item in accept_encoding.split(","):
        coding, _, weight = item.strip().lower().replace(" ", "").partition(";q=")
        if coding in ("gzip", "*"):
            return weight not in ("0", "0.0", "0.00", "0.000")
    return False
