"""The bulk read, which is asked by every process at its start and so must be quick."""

from __future__ import annotations

import gzip
import re

from fastapi import Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.routing import Route

from ..bulk_read.answers import Answer, etag
from ..middleware.asgi_scope import header
from ..problems import ProblemError
from ..server_parts import Server
from ..services.access import NAMESPACE
from .common import Asking

__all__ = ["PATH", "bulk_read", "quick_route"]

PATH = "/v1/{namespace}/contexts/{context}/records"
_NAMESPACE = re.compile(NAMESPACE)
_DIGEST = re.compile(r"[0-9a-f]{24}")


async def bulk_read(here: Asking, namespace: str, context: str, request: Request) -> Response:
    """Every record of a context, or 304 if the asker has them.

    Raises:
        ProblemError: 403, or 404 if nothing is known of the context.
    """
    here.who.require("read", namespace)
    reads, metrics, key = here.server.reads, here.server.metrics, (namespace, context)
    revision = await reads.revision(key)
    if revision is not None and _has(header(request.scope, b"if-none-match"), etag(revision)):
        metrics.unchanged.inc()
        return Response(status_code=304, headers=_headers(etag(revision)))
    answer = await reads.answer(key, revision) if revision is not None else None
    (metrics.hits if answer else metrics.misses).inc()
    if answer is None:
        raise ProblemError(
            404, "nothing is known of this context here: post records, or ask another namespace"
        )
    return await _sent(answer, header(request.scope, b"accept-encoding") or "")


def quick_route(server: Server) -> Route:
    """The bulk read without what FastAPI does around a route, which takes longer than the read."""

    async def quick(request: Request) -> Response:
        namespace, context = request.path_params["namespace"], request.path_params["context"]
        if not (_NAMESPACE.fullmatch(namespace) and _DIGEST.fullmatch(context)):
            raise ProblemError(
                404,
                "no such resource: a namespace is a short name, a context 24 hexadecimal digits",
            )
        request.scope["route"] = route
        here = Asking(request.scope["principal"], server)
        return await bulk_read(here, namespace, context, request)

    route = Route(PATH, quick, methods=["GET"])
    return route


def _has(if_none_match: str | None, tag: str) -> bool:
    if if_none_match is None:
        return False
    return if_none_match.strip() == "*" or tag in {
        each.strip().removeprefix("W/") for each in if_none_match.split(",")
    }


def _headers(tag: str) -> dict[str, str]:
    return {
        "ETag": tag,
        "Vary": "Accept-Encoding, Authorization",
        "Cache-Control": "private, no-cache",
    }


async def _sent(answer: Answer, accepted: str) -> Response:
    headers = _headers(answer.etag)
    if _takes_gzip(accepted):
        return Response(
            answer.gzipped,
            headers=headers | {"Content-Encoding": "gzip"},
            media_type="application/json",
        )
    plain = await run_in_threadpool(gzip.decompress, answer.gzipped)
    return Response(plain, headers=headers, media_type="application/json")


def _takes_gzip(accepted: str) -> bool:
    for each in accepted.split(","):
        coding, _, weight = each.strip().lower().replace(" ", "").partition(";q=")
        if coding in ("gzip", "*"):
            return weight not in ("0", "0.0", "0.00", "0.000")
    return False
