"""Routes of `/v1/{namespace}/misses`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import Query, Response
from pydantic import BaseModel, ConfigDict, Field, StrictInt

from dejavu_cache.model.scenario import Context, Scenario

from ..services import misses
from ..storage.sql import to_datetime
from .common import (
    CurrentCall,
    KernelName,
    Namespace,
    accepts,
    json_response,
    responds_with,
    versioned_router,
)

__all__ = ["router"]

router = versioned_router()


class Miss(BaseModel):
    """A scenario without a record, and how often it was looked up since the last report."""

    model_config = ConfigDict(extra="forbid")

    context: Context
    scenario: Scenario
    count: StrictInt = Field(default=1, ge=1, le=1_000_000_000)


class Misses(BaseModel):
    """A report of misses."""

    model_config = ConfigDict(extra="forbid")

    misses: list[Miss]


class Counted(BaseModel):
    """The number of misses counted."""

    counted: int


@router.post("/{namespace}/misses")
@accepts("read", 4 * 2**20)
def count_misses(namespace: Namespace, report: Misses, call: CurrentCall) -> Counted:
    """Add misses to the worklist."""
    reported = [(miss.context, miss.scenario, miss.count) for miss in report.misses]
    counted = misses.count_misses(call.database, call.principal, namespace, reported)
    return Counted(counted=counted)


class WorklistItem(BaseModel):
    """A scenario without a record, and how often it was looked up."""

    context: Context
    scenario: Scenario
    count: int
    first_seen: datetime
    last_seen: datetime


class Worklist(BaseModel):
    """Misses, the most frequent first."""

    misses: list[WorklistItem]


@router.get("/{namespace}/misses", responses=responds_with(Worklist))
def list_misses(
    namespace: Namespace,
    call: CurrentCall,
    kernel: KernelName = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """List the worklist, the most frequent misses first."""
    call.principal.require("read", namespace)
    with call.database.read() as connection:
        listed = misses.list_misses(connection, namespace, kernel, limit)
    rendered = ", ".join(
        f'{{"context": {miss.context}, "scenario": {miss.scenario}, "count": {miss.times}, '
        f'"first_seen": "{to_datetime(miss.first_seen).isoformat()}", '
        f'"last_seen": "{to_datetime(miss.last_seen).isoformat()}"}}'
        for miss in listed
    )
    return json_response(f'{{"misses": [{rendered}]}}')
