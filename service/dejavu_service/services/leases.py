"""Leases: the exclusive right to tune a scenario, until it is released or its time is over.

The time is that of the database's clock, on which replicas agree.
"""

from __future__ import annotations

import secrets

from sqlalchemy import ColumnElement, Connection, and_, case, delete, func, or_, select, update

from dejavu_cache.model.scenario import Context, Scenario

from ..errors import NotFoundError, TooManyError
from ..storage.database import Database
from ..storage.sql import epoch, insert
from ..storage.tables import leases
from .access import Principal

__all__ = ["MOST_LEASES", "count_held", "grant", "list_holders", "release", "renew"]

MOST_LEASES = 2000
"""Leases of a namespace that a principal may hold; a process that tunes holds one at a time."""


def grant(
    database: Database,
    principal: Principal,
    namespace: str,
    context: Context,
    scenario: Scenario,
    holder: str,
    ttl: float,
) -> tuple[str | None, float]:
    """Grant the lease on a scenario if it is free, expired or the holder's own.

    Args:
        database: The server's database.
        principal: Who asks; needs the role `write`. With another one, it is another holder.
        namespace: The namespace of the scenario.
        context: The context of the scenario.
        scenario: The scenario to tune.
        holder: Names the process; the same holder gets its own lease again.
        ttl: Seconds until the lease expires.

    Returns:
        The lease's id and `ttl`, or None and the seconds until the other holder's lease expires.

    Raises:
        AccessDeniedError: The principal lacks the role `write`.
        TooManyError: The principal holds `MOST_LEASES` leases already.
    """
    principal.require("write", namespace)
    key = {"namespace": namespace, "context": context.digest, "scenario": scenario.digest}
    is_this = and_(*(leases.c[name] == value for name, value in key.items()))
    own = and_(leases.c.holder == holder, leases.c.owner == principal.name)
    expired = leases.c.expires_at <= epoch()
    with database.write() as connection:
        held = _count(connection, leases.c.namespace == namespace, leases.c.owner == principal.name)
        if held >= MOST_LEASES:
            raise TooManyError(
                f"{principal.name} holds {MOST_LEASES} leases in {namespace!r}: release some"
            )
        # One statement, so that of several replicas that ask at once only one succeeds.
        statement = insert(connection, leases).values(
            **key,
            id=secrets.token_hex(16),
            holder=holder,
            owner=principal.name,
            expires_at=epoch() + ttl,
        )
        new = statement.excluded
        statement = statement.on_conflict_do_update(
            index_elements=list(key),
            set_={
                "id": case((and_(own, ~expired), leases.c.id), else_=new.id),
                "holder": new.holder,
                "owner": new.owner,
                "expires_at": new.expires_at,
            },
            where=or_(expired, own),
        )
        lease: str | None = connection.execute(statement.returning(leases.c.id)).scalar()
        if lease is not None:
            return lease, ttl
        query = select(leases.c.expires_at - epoch()).where(is_this)
        return None, max(connection.execute(query).scalar() or 0.0, 0.0)


def renew(database: Database, principal: Principal, namespace: str, lease: str, ttl: float) -> None:
    """Extend a lease to `ttl` seconds from now.

    Raises:
        AccessDeniedError: The principal lacks the role `write`.
        NotFoundError: The lease has expired or been released.
    """
    principal.require("write", namespace)
    live = and_(
        leases.c.id == lease, leases.c.namespace == namespace, leases.c.expires_at > epoch()
    )
    with database.write() as connection:
        statement = update(leases).where(live).values(expires_at=epoch() + ttl)
        if not connection.execute(statement).rowcount:
            raise NotFoundError("this lease has expired or been released: ask for a new one")


def release(database: Database, principal: Principal, namespace: str, lease: str) -> None:
    """Release a lease, if it is still held."""
    principal.require("write", namespace)
    with database.write() as connection:
        connection.execute(
            delete(leases).where(leases.c.id == lease, leases.c.namespace == namespace)
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


def count_held(connection: Connection) -> int:
    """Count the leases that have not expired."""
    return _count(connection)


def _count(connection: Connection, *clauses: ColumnElement[bool]) -> int:
    query = select(func.count()).select_from(leases).where(leases.c.expires_at > epoch(), *clauses)
    return connection.execute(query).scalar_one()
