"""Routes of `/v1/{namespace}/writers` and `/v1/{namespace}/quarantines`."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query, Response
from pydantic import BaseModel, StrictBool

from ..services import quarantines
from .common import CurrentCall, Namespace, accepts, versioned_router

__all__ = ["router"]

router = versioned_router()

_QuarantineId = Annotated[str, Path(pattern=r"^[0-9a-f]{16}$")]


class QuarantineWish(quarantines.WriterFilter):
    """Which measurements and winners shall go from readers: those to which all fields apply.

    It names a token, a host, or the context, the scenario and the config of measurements.
    """

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
    if wish.preview:
        response.status_code = 200
    return quarantines.quarantine_writer(
        call.database, call.principal, namespace, wish, preview=wish.preview
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
