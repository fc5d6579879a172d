"""Leases: the right to tune one scenario, for a time that the database's clock measures."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, and_, case, delete, func, or_, select, update

from .tables import epoch, leases
from .upserts import insert

__all__ = ["Held", "drop_expired", "grant", "held", "release", "remaining", "renew"]


class Held(NamedTuple):
    """A lease and the seconds for which it still holds."""

    id: str
    expires_in: float


def grant(
    connection: Connection,
    namespace: str,
    context: str,
    scenario: str,
    holder: str,
    ttl: float,
    new_id: str,
) -> Held | None:
    """Gives a lease that is free, expired or the holder's own, in one statement; None if another has it."""
    statement = insert(connection, leases).values(
        namespace=namespace,
        context=context,
        scenario=scenario,
        id=new_id,
        holder=holder,
        expires_at=epoch() + ttl,
    )
    expired, own = leases.c.expires_at <= epoch(), leases.c.holder == holder
    statement = statement.on_conflict_do_update(
        index_elements=[leases.c.namespace, leases.c.context, leases.c.scenario],
        set_={
            "id": case((and_(own, ~expired), leases.c.id), else_=statement.excluded.id),
            "holder": statement.excluded.holder,
            "expires_at": statement.excluded.expires_at,
        },
        where=or_(expired, own),
    )
    identity = connection.execute(statement.returning(leases.c.id)).scalar()
    return None if identity is None else Held(identity, ttl)


def remaining(connection: Connection, namespace: str, context: str, scenario: str) -> float:
    """The seconds until the lease on a scenario is free."""
    query = select(leases.c.expires_at - epoch()).where(
        leases.c.namespace == namespace, leases.c.context == context, leases.c.scenario == scenario
    )
    return max(connection.execute(query).scalar() or 0.0, 0.0)


def renew(connection: Connection, namespace: str, identity: str, ttl: float) -> bool:
    """Holds a lease for longer; False if it has expired or gone."""
    mine = and_(
        leases.c.id == identity, leases.c.namespace == namespace, leases.c.expires_at > epoch()
    )
    return (
        connection.execute(update(leases).where(mine).values(expires_at=epoch() + ttl)).rowcount > 0
    )


def release(connection: Connection, namespace: str, identity: str) -> None:
    """Gives a lease back."""
    connection.execute(
        delete(leases).where(leases.c.id == identity, leases.c.namespace == namespace)
    )


def held(connection: Connection) -> int:
    """How many leases are held now."""
    query = select(func.count()).select_from(leases).where(leases.c.expires_at > epoch())
    return connection.execute(query).scalar() or 0


def drop_expired(connection: Connection) -> int:
    """Forgets leases that expired; they would be taken over anyway."""
    return connection.execute(delete(leases).where(leases.c.expires_at <= epoch())).rowcount
