"""Reads that every process sends at its start, answered before the routes are searched."""

from __future__ import annotations

import re
from typing import NamedTuple

from starlette.types import ASGIApp, Receive, Scope, Send

from ..problems import ANSWERED_ERRORS, respond_to
from ..server import Server
from ..services.access import NAMESPACE
from . import bulk
from .common import DIGEST, Call

__all__ = ["QuickReadsMiddleware"]


class _Route(NamedTuple):
    """What metrics and logs call a route by."""

    path: str


_ALL_RECORDS = _Route("/v1/{namespace}/contexts/{context}/records")
_ONE_RECORD = _Route(f"{_ALL_RECORDS.path}/{{scenario}}")
_NAME, _DIGEST = NAMESPACE.strip("^$"), DIGEST.strip("^$")
_PATH = re.compile(rf"/v1/({_NAME})/contexts/({_DIGEST})/records(?:/({_DIGEST}))?")


class QuickReadsMiddleware:
    """ASGI middleware that answers reads of a context's records or of one of them.

    The framework's handling of a route takes longer than the read itself. Whatever is not such a
    read, well-formed and without a query, is left to the routes.
    """

    def __init__(self, app: ASGIApp, server: Server) -> None:
        """Answer for a server, in front of an app."""
        self._app = app
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a read, or pass the request on."""
        is_read = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
        parts = _PATH.fullmatch(scope["path"]) if is_read else None
        if parts is None or scope["query_string"]:
            await self._app(scope, receive, send)
            return
        namespace, context, scenario = parts.groups()
        scope["route"] = _ONE_RECORD if scenario else _ALL_RECORDS
        call = Call(scope["principal"], self._server)
        try:
            if scenario:
                response = await bulk.keyed_read(call, namespace, context, scenario, scope)
            else:
                response = await bulk.bulk_read(call, namespace, context, scope)
        except ANSWERED_ERRORS as error:
            response = respond_to(error)
        await response(scope, receive, send)
