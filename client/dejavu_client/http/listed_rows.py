"""What commands need of the rows that a server lists; rows may have more."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field

from dejavu_cache.model.scenario import Context, Scenario

__all__ = [
    "Count",
    "ListedChange",
    "ListedMiss",
    "ListedQuarantine",
    "ListedWriter",
    "QuarantineCounts",
]

Count = Annotated[int, Field(ge=0)]


class ListedMiss(BaseModel):
    """A scenario of the worklist."""

    context: Context
    scenario: Scenario
    count: Count


class ListedWriter(BaseModel):
    """A token or a host that wrote measurements."""

    sender: str
    by: str
    measurements: Count
    standing: Count
    last: str


class ListedQuarantine(BaseModel):
    """A quarantine, and whom it concerned."""

    id: str
    created: str
    actor: str
    wanted: dict[str, Any]
    parts: Count
    undone: str | None


class QuarantineCounts(BaseModel):
    """What a quarantine takes or gives back."""

    id: str | None
    contexts: Count
    records: Count
    measurements: Count
    winners: Count


class ListedChange(BaseModel):
    """A change that somebody made."""

    at: str
    actor: str
    action: str
    namespace: str
    kernel: str
    detail: dict[str, Any]
