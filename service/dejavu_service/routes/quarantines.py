"""Routes of `/v1/{namespace}/writers` and `/v1/{namespace}/quarantines`."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field, StrictBool

from dejavu_cache.model.scenario import Moment

from ..services import quarantines
from ..storage.quarantines import WriterFilter
from .common import DIGEST, CurrentCall, Namespace, accepts, versioned_router

__all__ = ["router"]

router = versioned_router()

_Text = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
_Digest = Annotated[str, Field(pattern=DIGEST)]
_QuarantineId = Annotated[str, Path(pattern=r"^[0-9a-f]{16}$")]


class QuarantineWish(BaseModel):
    """Which measurements and winners shall go from readers: those to which all fields apply.

    It names a token, a host, or the context, the scenario and the config of measurements.
    """

    model_config = ConfigDict(extra="forbid")

    token: _Text | None = None
    """The id of a token, or the name of tokens."""
    host: _Text | None = None
    """A host, or a user and a host, as measurements name them."""
    since: Moment | None = None
    until: Moment | None = None
    context: _Digest | None = None
    """The digest of a context, as are the next two of a scenario and a config."""
    scenario: _Digest | None = None
    config: _Digest | None = None
    preview: StrictBool = False
    """Whether to count only."""


class Writers(BaseModel):
    """Who wrote the measurements of a namespace."""

    writers: list[quarantines.Writer]


class Quarantines(BaseModel):
    """The quarantines of a namespace, the latest first."""

    quarantines: list[quarantines.Quarantine]


@router.get("/{namespace}/writers")
def list_writers(
    namespace: Namespace,
    call: CurrentCall,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> Writers:
    """List the tokens and the hosts that wrote measurements, the latest first."""
    writers = quarantines.list_writers(call.database, call.principal, namespace, limit)
    return Writers(writers=writers)


@router.post(
    "/{namespace}/quarantines",
    status_code=201,
    responses={200: {"model": quarantines.Quarantined, "description": "Counted"}},
)
@accepts("admin")
def create_quarantine(
    namespace: Namespace, wish: QuarantineWish, call: CurrentCall, response: Response
) -> quarantines.Quarantined:
    """Take from readers what a writer wrote, or a config's timings, or count what that would be."""
    wanted = WriterFilter(
        wish.token,
        wish.host,
        wish.since.timestamp() if wish.since else None,
        wish.until.timestamp() if wish.until else None,
        wish.context,
        wish.scenario,
        wish.config,
    )
    if wish.preview:
        response.status_code = 200
    return quarantines.quarantine_writer(
        call.database, call.principal, namespace, wanted, preview=wish.preview
    )


@router.get("/{namespace}/quarantines")
def list_quarantines(namespace: Namespace, call: CurrentCall) -> Quarantines:
    """List the quarantines, also those that are undone."""
    listed = quarantines.list_quarantines(call.database, call.principal, namespace)
    return Quarantines(quarantines=listed)


@router.delete("/{namespace}/quarantines/{quarantine_id}")
def undo_quarantine(
    namespace: Namespace, quarantine_id: _QuarantineId, call: CurrentCall
) -> quarantines.Quarantined:
    """Give back to readers what a quarantine took."""
    return quarantines.undo_quarantine(call.database, call.principal, namespace, quarantine_id)
