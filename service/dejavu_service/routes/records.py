"""Routes of `/v1/{namespace}/contexts`, of the records in them, and of their pins."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from dejavu_cache.model.record import Record, RecordSet
from dejavu_cache.model.scenario import Config, Context

from ..services import records
from ..services.records import Copies
from ..storage import contexts
from .common import (
    ContextDigest,
    CurrentCall,
    KernelName,
    Namespace,
    ScenarioDigest,
    accepts,
    json_response,
    responds_with,
    versioned_router,
)

__all__ = ["router"]

router = versioned_router()

_Limit = Annotated[int, Query(ge=1, le=1000)]
_After = Annotated[str | None, Query(pattern=r"^[0-9a-f]{24}$")]
_Scenarios = Annotated[
    list[Annotated[str, Query(pattern=r"^[0-9a-f]{24}$")]] | None, Query(max_length=1000)
]


class ContextPage(BaseModel):
    """Contexts, and the digest to continue after; null on the last page."""

    contexts: list[Context]
    next: str | None


class ContextChanges(BaseModel):
    """What has changed of a context that a client has copies of."""

    revision: str
    """The present revision, to send the next time; empty if the context does not exist."""
    records: list[Record]
    """The records that differ from the client's."""
    gone: list[str]
    """Digests of the scenarios that have no record."""
    recalls: dict[str, list[str]]
    """Digests of measurements and pins that no copy may keep, by the digest of the scenario."""


class Revalidation(BaseModel):
    """Changes by the digest of their context; contexts without any are left out."""

    contexts: dict[str, ContextChanges]


class Deleted(BaseModel):
    """The number of records deleted."""

    deleted: int


@router.get("/{namespace}/contexts", responses=responds_with(ContextPage))
def list_contexts(
    namespace: Namespace,
    call: CurrentCall,
    kernel: KernelName = None,
    after: _After = None,
    limit: _Limit = 100,
) -> Response:
    """List the contexts that have records, page by page."""
    call.principal.require("read", namespace)
    with call.database.read() as connection:
        listed = contexts.list_contexts(connection, namespace, kernel, after, limit + 1)
    following = f'"{listed[limit - 1][0]}"' if len(listed) > limit else "null"
    texts = ", ".join(text for _, text in listed[:limit])
    return json_response(f'{{"contexts": [{texts}], "next": {following}}}')


@router.post("/{namespace}/records", response_model_exclude_defaults=True)
@accepts("write", None)
def post_records(namespace: Namespace, sent: RecordSet, call: CurrentCall) -> records.Merged:
    """Merge records; sending them again changes nothing."""
    return records.post_records(call.database, call.principal, namespace, sent)


@router.post("/{namespace}/revalidation", responses=responds_with(Revalidation))
@accepts("read", 4 * 2**20, writes=False)
async def revalidate_copies(namespace: Namespace, copies: Copies, call: CurrentCall) -> Response:
    """Return what has changed of the records that a client has copies of."""
    async with call.server.rendering.turn(call.principal.name):
        changes = await run_in_threadpool(
            records.revalidate,
            call.database,
            call.principal,
            namespace,
            copies,
            call.server.reader.note_use,
        )
    return json_response(changes)


@router.delete("/{namespace:namespace}/contexts/{context:digest}/records")
def delete_records(
    namespace: Namespace, context: ContextDigest, call: CurrentCall, scenario: _Scenarios = None
) -> Deleted:
    """Delete records with their measurements."""
    deleted = records.delete_records(call.database, call.principal, namespace, context, scenario)
    return Deleted(deleted=deleted)


class Choice(BaseModel):
    """The config that readers shall get, and who chose it."""

    model_config = ConfigDict(extra="forbid")

    config: Config
    by: str = Field(default="", max_length=200)


@router.put("/{namespace}/contexts/{context}/pins/{scenario}", responses=responds_with(Record))
@accepts("admin")
def put_pin(
    namespace: Namespace,
    context: ContextDigest,
    scenario: ScenarioDigest,
    choice: Choice,
    call: CurrentCall,
) -> Response:
    """Pin a config, which overrides the measurements."""
    where = (namespace, context, scenario)
    record = records.set_pin(call.database, call.principal, *where, choice.config, choice.by)
    return json_response(record)


@router.delete("/{namespace}/contexts/{context}/pins/{scenario}", responses=responds_with(Record))
def delete_pin(
    namespace: Namespace, context: ContextDigest, scenario: ScenarioDigest, call: CurrentCall
) -> Response:
    """Remove a pin."""
    where = (namespace, context, scenario)
    record = records.set_pin(call.database, call.principal, *where, config=None, by="")
    return json_response(record)
