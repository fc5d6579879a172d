"""Single-flight tuning: one holder a scenario, until it lets go or its time is up."""

from __future__ import annotations

import secrets

from dejavu_cache.model.scenario import Context, Scenario

from ..problems import ProblemError
from ..storage import leases
from ..storage.database import Database
from .access import Principal

__all__ = ["grant", "release", "renew"]


def grant(
    database: Database,
    who: Principal,
    namespace: str,
    context: Context,
    scenario: Scenario,
    holder: str,
    ttl: float,
) -> tuple[str | None, float]:
    """The lease, or None, with the seconds until it is free."""
    who.require("write", namespace)
    with database.write() as connection:
        place = (namespace, context.digest, scenario.digest)
        held = leases.grant(connection, *place, holder, ttl, secrets.token_hex(16))
        return held or (None, leases.remaining(connection, *place))


def renew(database: Database, who: Principal, namespace: str, lease: str, ttl: float) -> None:
    """Holds a lease for longer.

    Raises:
        ProblemError: 403, or 404 once it has expired or been released.
    """
    who.require("write", namespace)
    with database.write() as connection:
        if not leases.renew(connection, namespace, lease, ttl):
            raise ProblemError(404, "this lease has expired or been released: ask for a new one")


def release(database: Database, who: Principal, namespace: str, lease: str) -> None:
    """Gives a lease back; one that is gone already is no error."""
    who.require("write", namespace)
    with database.write() as connection:
        leases.release(connection, namespace, lease)
