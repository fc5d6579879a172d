"""Routes of `/v1/{namespace}/export`, `/import` and `/promote`."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from typing import IO, Annotated, Any

from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import iterate_in_threadpool, run_in_threadpool
from starlette.types import Receive, Scope, Send

from ..errors import AccessDeniedError
from ..problems import ProblemError
from ..services import transfer
from ..services.access import NAMESPACE
from .common import (
    Call,
    CurrentCall,
    KernelName,
    Namespace,
    accepts,
    body_chunks,
    media_type,
    takes_own_turn,
    versioned_router,
)

__all__ = ["router"]

router = versioned_router()

_NDJSON = "application/x-ndjson"
_OF_FORMS = {"text/plain", "multipart/form-data", "application/x-www-form-urlencoded"}
"""Types that a page of any site may make a browser send."""
_MAX_IN_MEMORY = 4 * 2**20
"""Bytes of an import that are kept in memory; a larger one goes to a temporary file."""
_Writer = Annotated[str, Field(min_length=1, max_length=200)]


class Promotion(BaseModel):
    """The target namespace, and the kernel or the writers to copy if not all.

    With `writers`, nothing is copied of a context that others have written to.
    """

    model_config = ConfigDict(extra="forbid")

    to: str = Field(pattern=NAMESPACE)
    kernel: str | None = Field(
        default=None, min_length=1, max_length=500, pattern=r"^[^\x00-\x1f\x7f]+$"
    )
    writers: list[_Writer] | None = Field(default=None, min_length=1, max_length=100)


class Promoted(BaseModel):
    """The number of records copied."""

    records: int


class _Export(StreamingResponse):
    """An export in its principal's turn, since a client may take hours to read it."""

    def __init__(self, *args: Any, turn: AbstractAsyncContextManager[None], **options: Any) -> None:
        super().__init__(*args, **options)
        self._turn = turn

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._turn:
            await super().__call__(scope, receive, send)


@router.get(
    "/{namespace}/export", response_class=Response, responses={200: {"content": {_NDJSON: {}}}}
)
def export_records(namespace: Namespace, call: CurrentCall, kernel: KernelName = None) -> Response:
    """Export a record set on each line."""
    call.principal.require("read", namespace)
    lines = transfer.export_lines(call.database, namespace, kernel, call.server.reader)
    turn = call.server.exporting.turn(call.principal.name)
    return _Export(_while_valid(call, lines), media_type=_NDJSON, turn=turn)


async def _while_valid(call: Call, lines: Iterator[str]) -> AsyncIterator[str]:
    """Yield lines as long as the token of the call is valid: a client may read them for hours.

    Raises:
        AccessDeniedError: The token has expired or was revoked.
    """
    async for line in iterate_in_threadpool(lines):
        if call.credential and await call.server.principals.find(call.credential) is None:
            raise AccessDeniedError("the token has expired or was revoked during the export")
        yield line


@router.post(
    "/{namespace}/import",
    openapi_extra={
        "requestBody": {"required": True, "content": {_NDJSON: {"schema": {"type": "string"}}}}
    },
)
@takes_own_turn
async def import_records(
    namespace: Namespace, request: Request, call: CurrentCall
) -> transfer.Imported:
    """Merge the lines of an export; if one is malformed, nothing is imported."""
    call.principal.require("admin", namespace)
    if media_type(request) in _OF_FORMS:
        raise ProblemError(415, f"an import is lines of JSON: send  Content-Type: {_NDJSON}")
    async with call.server.importing.turn(call.principal.name):
        with tempfile.SpooledTemporaryFile(_MAX_IN_MEMORY) as lines:
            await _receive(request, lines, call.server.settings.max_import)
            async with call.server.writing.turn(namespace):
                return await run_in_threadpool(
                    transfer.import_lines,
                    call.database,
                    call.principal,
                    namespace,
                    lines,
                    call.server.stopping.is_set,
                )


async def _receive(request: Request, file: IO[bytes], max_bytes: int) -> None:
    """Write a body to a temporary file."""
    async for chunk in body_chunks(request, max_bytes):
        try:
            await run_in_threadpool(file.write, chunk)
        except OSError as error:
            raise ProblemError(
                503,
                "the server has no room for the import among its temporary files "
                f"({error.strerror}): send it in parts, or ask its admin for room",
                headers={"Retry-After": "10"},
            ) from None


@router.post("/{namespace}/promote")
@accepts("admin", 2**20)
def promote_records(namespace: Namespace, promotion: Promotion, call: CurrentCall) -> Promoted:
    """Copy records to another namespace, where their winners replace those of the target."""
    copied = transfer.promote(
        call.database, call.principal, namespace, promotion.to, promotion.kernel, promotion.writers
    )
    return Promoted(records=copied)
