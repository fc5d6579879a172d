"""`/v1/{namespace}/misses`."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Annotated

from fastapi import Query, Response
from pydantic import BaseModel, ConfigDict, Field, StrictInt

from dejavu_cache.model.scenario import Context, Scenario

from ..services import misses as rules
from .common import Here, KernelName, Namespace, json_text, router, shows

__all__ = ["misses"]

misses = router()


class Miss(BaseModel):
    """How often a scenario was wanted since the last report."""

    model_config = ConfigDict(extra="forbid")

    context: Context
    scenario: Scenario
    count: StrictInt = Field(default=1, ge=1, le=1_000_000_000)


class Misses(BaseModel):
    """A report."""

    model_config = ConfigDict(extra="forbid")

    misses: list[Miss]


class Counted(BaseModel):
    """The misses that were counted."""

    counted: int


@misses.post("/{namespace}/misses")
def count_misses(namespace: Namespace, report: Misses, here: Here) -> Counted:
    """Puts scenarios on the worklist."""
    seen = [(miss.context, miss.scenario, miss.count) for miss in report.misses]
    most = here.server.settings.max_records
    return Counted(counted=rules.count(here.server.database, here.who, namespace, seen, most))


@misses.get("/{namespace}/misses", responses=shows("Worklist"))
def list_misses(
    namespace: Namespace,
    here: Here,
    kernel: KernelName = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """The worklist, most wanted first."""
    lines = [
        f'{{"context": {each.context}, "scenario": {each.scenario}, "count": {each.times}, '
        f'"first_seen": "{_moment(each.first_seen)}", "last_seen": "{_moment(each.last_seen)}"}}'
        for each in rules.listed(here.server.database, here.who, namespace, kernel, limit)
    ]
    return json_text(f'{{"misses": [{", ".join(lines)}]}}')


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat()
