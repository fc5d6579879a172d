"""Leases: the exclusive right to tune a scenario, until a time by the database's clock."""

from __future__ import annotations

from sqlalchemy import Connection, and_, case, delete, func, or_, select, update

from .sql import epoch, insert
from .tables import leases

__all__ = [
    "count_held",
    "count_of_owner",
    "drop_expired",
    "drop_of_owner",
    "grant",
    "list_holders",
    "release",
    "renew",
    "seconds_until_free",
]


def grant(
    connection: Connection,
    namespace: str,
    context: str,
    scenario: str,
    holder: str,
    owner: str,
    ttl: float,
    new_id: str,
) -> str | None:
    """Grant the lease on a scenario if it is free, expired or the holder's own.

    One statement, so that of several replicas that ask at once only one succeeds.

    Args:
        connection: A write transaction.
        namespace: The namespace of the scenario.
        context: The digest of the scenario's context.
        scenario: The digest of the scenario.
        holder: Names the process that asks.
        owner: The principal on whose behalf it asks; with another one, it is another holder.
        ttl: Seconds until the lease expires.
        new_id: The id of the lease, unless the holder has it already.

    Returns:
        The lease's id, or None if another holder has it.
    """
    statement = insert(connection, leases).values(
        namespace=namespace,
        context=context,
        scenario=scenario,
        id=new_id,
        holder=holder,
        owner=owner,
        expires_at=epoch() + ttl,
    )
    expired = leases.c.expires_at <= epoch()
    own = and_(leases.c.holder == holder, leases.c.owner == owner)
    statement = statement.on_conflict_do_update(
        index_elements=[leases.c.namespace, leases.c.context, leases.c.scenario],
        set_={
            "id": case((and_(own, ~expired), leases.c.id), else_=statement.excluded.id),
            "holder": statement.excluded.holder,
            "owner": statement.excluded.owner,
            "expires_at": statement.excluded.expires_at,
        },
        where=or_(expired, own),
    )
    identity: str | None = connection.execute(statement.returning(leases.c.id)).scalar()
    return identity


def seconds_until_free(
    connection: Connection, namespace: str, context: str, scenario: str
) -> float:
    """Return the seconds until the lease on a scenario expires; 0 if it is free."""
    query = select(leases.c.expires_at - epoch()).where(
        leases.c.namespace == namespace, leases.c.context == context, leases.c.scenario == scenario
    )
    return max(connection.execute(query).scalar() or 0.0, 0.0)


def renew(connection: Connection, namespace: str, identity: str, ttl: float) -> bool:
    """Extend a lease to `ttl` seconds from now; return False if it has expired or is gone."""
    live = and_(
        leases.c.id == identity, leases.c.namespace == namespace, leases.c.expires_at > epoch()
    )
    statement = update(leases).where(live).values(expires_at=epoch() + ttl)
    return connection.execute(statement).rowcount > 0


def release(connection: Connection, namespace: str, identity: str) -> None:
    """Delete a lease."""
    connection.execute(
        delete(leases).where(leases.c.id == identity, leases.c.namespace == namespace)
    )


def list_holders(connection: Connection, namespace: str) -> dict[tuple[str, str], str]:
    """List who holds a namespace's leases by the digests of context and scenario."""
    query = select(leases.c.context, leases.c.scenario, leases.c.holder, leases.c.owner).where(
        leases.c.namespace == namespace, leases.c.expires_at > epoch()
    )
    return {
        (context, scenario): f"{holder} by {owner}"
        for context, scenario, holder, owner in connection.execute(query)
    }


def count_of_owner(connection: Connection, namespace: str, owner: str) -> int:
    """Count the leases of a namespace that a principal holds and that have not expired."""
    query = select(func.count()).where(
        leases.c.namespace == namespace, leases.c.expires_at > epoch(), leases.c.owner == owner
    )
    return connection.execute(query).scalar() or 0


def count_held(connection: Connection) -> int:
    """Count the leases that have not expired."""
    query = select(func.count()).select_from(leases).where(leases.c.expires_at > epoch())
    return connection.execute(query).scalar() or 0


def drop_of_owner(connection: Connection, owner: str) -> None:
    """Delete the leases of a principal in all namespaces."""
    connection.execute(delete(leases).where(leases.c.owner == owner))


def drop_expired(connection: Connection) -> int:
    """Delete expired leases and return their number."""
    return connection.execute(delete(leases).where(leases.c.expires_at <= epoch())).rowcount
