"""Routes of `/v1/{namespace}/leases`."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field, StrictFloat

from dejavu_cache.model.scenario import Context, Scenario

from ..services import leases
from .common import CurrentCall, Namespace, accepts, versioned_router

__all__ = ["router"]

router = versioned_router()

_LeaseId = Annotated[str, Path(pattern=r"^[0-9a-f]{32}$", description="A lease, as it was granted")]
_Seconds = Annotated[StrictFloat, Field(ge=1, le=3600, allow_inf_nan=False)]


class LeaseWish(BaseModel):
    """A scenario to tune, the process that asks for it, and the seconds until the lease expires."""

    model_config = ConfigDict(extra="forbid")

    context: Context
    scenario: Scenario
    holder: str = Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")
    ttl: _Seconds


class Renewal(BaseModel):
    """The seconds from now until the lease expires."""

    model_config = ConfigDict(extra="forbid")

    ttl: _Seconds


class Lease(BaseModel):
    """A lease, or null and the seconds until the lease of another holder expires."""

    lease: str | None
    expires_in: float


@router.post("/{namespace}/leases")
@accepts("write")
def grant_lease(namespace: Namespace, wish: LeaseWish, call: CurrentCall) -> Lease:
    """Grant the right to tune a scenario to one holder at a time."""
    lease, expires_in = leases.grant(
        call.database,
        call.principal,
        namespace,
        wish.context,
        wish.scenario,
        wish.holder,
        wish.ttl,
    )
    return Lease(lease=lease, expires_in=expires_in)


@router.put("/{namespace}/leases/{lease}")
@accepts("write")
def renew_lease(
    namespace: Namespace, lease: _LeaseId, renewal: Renewal, call: CurrentCall
) -> Lease:
    """Extend a lease."""
    leases.renew(call.database, call.principal, namespace, lease, renewal.ttl)
    return Lease(lease=lease, expires_in=renewal.ttl)


@router.delete("/{namespace}/leases/{lease}", status_code=204)
def release_lease(namespace: Namespace, lease: _LeaseId, call: CurrentCall) -> None:
    """Release a lease."""
    leases.release(call.database, call.principal, namespace, lease)
