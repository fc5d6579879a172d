"""`/v1/{namespace}/contexts` and `/records`."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request, Response
from pydantic import BaseModel

from dejavu_cache.model.record import RecordSet

from ..problems import ProblemError
from ..services import records as rules
from .bulk import bulk_read
from .common import (
    ContextDigest,
    Here,
    KernelName,
    Namespace,
    ScenarioDigest,
    json_text,
    router,
    shows,
)

__all__ = ["records"]

records = router()

_NOT_YET = "there is no record of this scenario"
_Limit = Annotated[int, Query(ge=1, le=1000)]
_After = Annotated[str | None, Query(pattern=r"^[0-9a-f]{24}$")]
_Scenarios = Annotated[
    list[Annotated[str, Query(pattern=r"^[0-9a-f]{24}$")]] | None, Query(max_length=1000)
]


class Deleted(BaseModel):
    """How many records there were."""

    deleted: int


@records.get("/{namespace}/contexts", responses=shows("ContextPage"))
def list_contexts(
    namespace: Namespace,
    here: Here,
    kernel: KernelName = None,
    after: _After = None,
    limit: _Limit = 100,
) -> Response:
    """The contexts that have records, a page at a time."""
    found = rules.listed(here.server.database, here.who, namespace, kernel, after, limit)
    following = f'"{found[limit - 1][0]}"' if len(found) > limit else "null"
    texts = ", ".join(text for _, text in found[:limit])
    return json_text(f'{{"contexts": [{texts}], "next": {following}}}')


@records.get(
    "/{namespace}/contexts/{context}/records",
    responses={
        **shows("RecordSet"),
        304: {"description": "Unchanged since the `If-None-Match` that was sent"},
    },
)
async def read_records(
    namespace: Namespace, context: ContextDigest, request: Request, here: Here
) -> Response:
    """Every record of a context."""
    return await bulk_read(here, namespace, context, request)


@records.get("/{namespace}/contexts/{context}/records/{scenario}", responses=shows("Record"))
async def read_record(
    namespace: Namespace,
    context: ContextDigest,
    scenario: ScenarioDigest,
    here: Here,
    wait: Annotated[float, Query(ge=0, le=30, description="Seconds to wait for a winner")] = 0.0,
) -> Response:
    """One record; with `wait`, as soon as it has a winner."""
    here.who.require("read", namespace)
    text = await here.server.reads.one((namespace, context), scenario, wait)
    (here.server.metrics.hits if text else here.server.metrics.misses).inc()
    if text is None:
        raise ProblemError(404, f"{_NOT_YET} with a winner after {wait:g} s" if wait else _NOT_YET)
    return json_text(text)


@records.post("/{namespace}/records")
def post_records(namespace: Namespace, sent: RecordSet, here: Here) -> rules.Merged:
    """Merges records; sending them again changes nothing."""
    return rules.post(
        here.server.database, here.who, namespace, sent, here.server.settings.max_records
    )


@records.delete("/{namespace}/contexts/{context}/records")
def delete_records(
    namespace: Namespace, context: ContextDigest, here: Here, scenario: _Scenarios = None
) -> Deleted:
    """Drops records, with their measurements."""
    return Deleted(deleted=rules.drop(here.server.database, here.who, namespace, context, scenario))
