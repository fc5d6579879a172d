"""`/v1/{namespace}/leases`."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field, StrictFloat

from dejavu_cache.model.scenario import Context, Scenario

from ..services import leases as rules
from .common import Here, Namespace, router

__all__ = ["leases"]

leases = router()

_Lease = Annotated[str, Path(pattern=r"^[0-9a-f]{32}$", description="A lease, as it was granted")]
_Seconds = Annotated[StrictFloat, Field(ge=1, le=3600, allow_inf_nan=False)]


class LeaseWish(BaseModel):
    """What is to be tuned, by whom, and for how long."""

    model_config = ConfigDict(extra="forbid")

    context: Context
    scenario: Scenario
    holder: str = Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")
    ttl: _Seconds


class Renewal(BaseModel):
    """For how long from now."""

    model_config = ConfigDict(extra="forbid")

    ttl: _Seconds


class Lease(BaseModel):
    """A lease, or null with the seconds until the one that somebody else holds ends."""

    lease: str | None
    expires_in: float


@leases.post("/{namespace}/leases")
def grant_lease(namespace: Namespace, wish: LeaseWish, here: Here) -> Lease:
    """The right to tune one scenario, for one holder at a time."""
    asked = (wish.context, wish.scenario, wish.holder, wish.ttl)
    lease, expires_in = rules.grant(here.server.database, here.who, namespace, *asked)
    return Lease(lease=lease, expires_in=expires_in)


@leases.put("/{namespace}/leases/{lease}")
def renew_lease(namespace: Namespace, lease: _Lease, renewal: Renewal, here: Here) -> Lease:
    """Holds a lease for longer."""
    rules.renew(here.server.database, here.who, namespace, lease, renewal.ttl)
    return Lease(lease=lease, expires_in=renewal.ttl)


@leases.delete("/{namespace}/leases/{lease}", status_code=204)
def release_lease(namespace: Namespace, lease: _Lease, here: Here) -> None:
    """Gives a lease back."""
    rules.release(here.server.database, here.who, namespace, lease)
