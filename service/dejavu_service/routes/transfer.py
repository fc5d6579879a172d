"""`/v1/{namespace}/export`, `/import` and `/promote`."""

from __future__ import annotations

import tempfile
from typing import Annotated

from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from ..services import transfer as rules
from ..services.access import NAMESPACE
from .common import Here, KernelName, Namespace, router

__all__ = ["transfer"]

transfer = router()

_NDJSON = "application/x-ndjson"
_IN_MEMORY = 4 * 2**20
_Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{24}$")]


class Promotion(BaseModel):
    """What to copy, and where to."""

    model_config = ConfigDict(extra="forbid")

    to: str = Field(pattern=NAMESPACE)
    kernel: str | None = Field(
        default=None, min_length=1, max_length=500, pattern=r"^[^\x00-\x1f\x7f]+$"
    )
    contexts: list[_Digest] | None = Field(default=None, min_length=1, max_length=10_000)


class Promoted(BaseModel):
    """The records that were copied."""

    records: int


@transfer.get(
    "/{namespace}/export", response_class=Response, responses={200: {"content": {_NDJSON: {}}}}
)
def export_records(namespace: Namespace, here: Here, kernel: KernelName = None) -> Response:
    """A record set a line."""
    lines = rules.dump(here.server.database, here.who, namespace, kernel)
    return StreamingResponse(lines, media_type=_NDJSON)


@transfer.post(
    "/{namespace}/import",
    openapi_extra={
        "requestBody": {"required": True, "content": {_NDJSON: {"schema": {"type": "string"}}}}
    },
)
async def import_records(namespace: Namespace, request: Request, here: Here) -> rules.Imported:
    """Merges what an export wrote; a line that is wrong refuses the whole."""
    here.who.require("admin", namespace)
    settings = here.server.settings
    with tempfile.SpooledTemporaryFile(_IN_MEMORY) as lines:
        async for chunk in request.stream():
            await run_in_threadpool(lines.write, chunk)
        limits = (settings.max_records, settings.max_body)
        return await run_in_threadpool(
            rules.load, here.server.database, here.who, namespace, lines, *limits
        )


@transfer.post("/{namespace}/promote")
def promote_records(namespace: Namespace, promotion: Promotion, here: Here) -> Promoted:
    """Copies records to another namespace, where their winners stand."""
    asked = (promotion.to, promotion.kernel, promotion.contexts)
    return Promoted(records=rules.promote(here.server.database, here.who, namespace, *asked))
