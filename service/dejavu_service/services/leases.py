"""Leases: the exclusive right to tune a scenario, until it is released or its time is over.

The time is that of the database's clock, on which replicas agree.
"""

import secrets
from typing import Annotated

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field, StrictFloat
from sqlalchemy import ColumnElement, Connection, and_, case, delete, func, or_, select, update

from dejavu_cache.model.scenario import Context, Scenario

from ..errors import NotFoundError, TooManyError
from ..storage.sql import epoch, insert
from ..storage.tables import leases
from .requests import CurrentCall, Namespace, ShortText, accepts, versioned_router

router = versioned_router()

MOST_LEASES = 2000
"""Leases of a namespace that a principal may hold; a process that tunes holds one at a time."""

_LeaseId = Annotated[str, Path(pattern=r"^[0-9a-f]{32}$", description="A lease, as it was granted")]
_Seconds = Annotated[StrictFloat, Field(ge=1, le=3600, allow_inf_nan=False)]

_left = leases.c.expires_at - epoch()
_is_live = _left.between(0.0, 3601.0)
"""Whether a lease holds: over an hour is left of one only where the clock was put back since."""


class LeaseRequest(BaseModel):
    """A scenario to tune, the process that asks for it, and the seconds until the lease expires."""

    model_config = ConfigDict(extra="forbid")

    context: Context
    scenario: Scenario
    holder: ShortText
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
def grant_lease(namespace: Namespace, request: LeaseRequest, call: CurrentCall) -> Lease:
    """Grant the right to tune a scenario to one holder at a time.

    The lease is granted if it is free, expired or the holder's own: of the same process, with the
    same token.
    """
    owner = call.principal.name
    digests = {"context": request.context.digest, "scenario": request.scenario.digest}
    key = {"namespace": namespace, **digests}
    own = and_(leases.c.holder == request.holder, leases.c.owner == owner)
    with call.database.write() as connection:
        lease_count = count_held(
            connection, leases.c.namespace == namespace, leases.c.owner == owner
        )
        if lease_count >= MOST_LEASES:
            raise TooManyError(f"{owner} holds {MOST_LEASES} leases in {namespace!r}: release some")
        # One statement, so that of several replicas that ask at once only one succeeds.
        statement = insert(connection, leases).values(
            **key,
            id=secrets.token_hex(16),
            holder=request.holder,
            owner=owner,
            expires_at=epoch() + request.ttl,
        )
        new = statement.excluded
        statement = statement.on_conflict_do_update(
            index_elements=list(key),
            set_={
                "id": case((and_(own, _is_live), leases.c.id), else_=new.id),
                "holder": new.holder,
                "owner": new.owner,
                "expires_at": new.expires_at,
            },
            where=or_(~_is_live, own),
        )
        lease: str | None = connection.execute(statement.returning(leases.c.id)).scalar()
        if lease is not None:
            return Lease(lease=lease, expires_in=request.ttl)
        left = connection.scalar(select(_left).select_from(leases).filter_by(**key))
        return Lease(lease=None, expires_in=max(left or 0.0, 0.0))


@router.put("/{namespace}/leases/{lease}")
@accepts("write")
def renew_lease(
    namespace: Namespace, lease: _LeaseId, renewal: Renewal, call: CurrentCall
) -> Lease:
    """Extend a lease."""
    live = and_(leases.c.id == lease, leases.c.namespace == namespace, _is_live)
    with call.database.write() as connection:
        statement = update(leases).where(live).values(expires_at=epoch() + renewal.ttl)
        if not connection.execute(statement).rowcount:
            raise NotFoundError("this lease has expired or been released: ask for a new one")
    return Lease(lease=lease, expires_in=renewal.ttl)


@router.delete("/{namespace}/leases/{lease}", status_code=204)
def release_lease(namespace: Namespace, lease: _LeaseId, call: CurrentCall) -> None:
    """Release a lease, if it is still held."""
    call.principal.require("write", namespace)
    with call.database.write() as connection:
        connection.execute(delete(leases).filter_by(id=lease, namespace=namespace))


def list_holders(connection: Connection, namespace: str) -> dict[tuple[str, str], str]:
    """List who holds a namespace's leases by the digests of context and scenario."""
    query = select(leases.c.context, leases.c.scenario, leases.c.holder, leases.c.owner).where(
        leases.c.namespace == namespace, _is_live
    )
    return {
        (context, scenario): f"{holder} by {owner}"
        for context, scenario, holder, owner in connection.execute(query)
    }


def count_held(connection: Connection, *clauses: ColumnElement[bool]) -> int:
    """Count the leases that have not expired, or those of them that clauses tell."""
    query = select(func.count()).select_from(leases).where(_is_live, *clauses)
    return connection.execute(query).scalar_one()
