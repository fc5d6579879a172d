"""Leases on scenarios: one process tunes a scenario, until it releases the lease or it expires."""

from __future__ import annotations

import secrets

from dejavu_cache.model.scenario import Context, Scenario

from ..errors import NotFoundError, TooManyError
from ..storage import leases
from ..storage.database import Database
from .access import Principal

__all__ = ["MOST_LEASES", "grant", "release", "renew"]

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
    """Grant the lease on a scenario, unless another holder has it.

    Args:
        database: The server's database.
        principal: Who asks; needs the role `write`.
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
    scenario_key = (namespace, context.digest, scenario.digest)
    with database.write() as connection:
        if leases.count_of_owner(connection, namespace, principal.name) >= MOST_LEASES:
            raise TooManyError(
                f"{principal.name} holds {MOST_LEASES} leases in {namespace!r}: release some"
            )
        lease = leases.grant(
            connection, *scenario_key, holder, principal.name, ttl, secrets.token_hex(16)
        )
        if lease is not None:
            return lease, ttl
        return None, leases.seconds_until_free(connection, *scenario_key)


def renew(database: Database, principal: Principal, namespace: str, lease: str, ttl: float) -> None:
    """Extend a lease to `ttl` seconds from now.

    Raises:
        AccessDeniedError: The principal lacks the role `write`.
        NotFoundError: The lease has expired or been released.
    """
    principal.require("write", namespace)
    with database.write() as connection:
        if not leases.renew(connection, namespace, lease, ttl):
            raise NotFoundError("this lease has expired or been released: ask for a new one")


def release(database: Database, principal: Principal, namespace: str, lease: str) -> None:
    """Release a lease, if it is still held."""
    principal.require("write", namespace)
    with database.write() as connection:
        leases.release(connection, namespace, lease)
