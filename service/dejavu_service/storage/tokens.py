"""Tokens, of which only a hash is kept."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row, select, update

from .tables import epoch, tokens

__all__ = ["add", "any_issued", "get", "listed", "now", "revoke"]


def add(
    connection: Connection,
    identity: str,
    name: str,
    digest: str,
    role: str,
    namespaces: str,
    ttl: float | None,
) -> None:
    """Adds a token that expires in `ttl` seconds, or never."""
    values: dict[str, Any] = {
        "created_at": epoch(),
        "expires_at": None if ttl is None else epoch() + ttl,
    }
    values |= {
        "id": identity,
        "name": name,
        "digest": digest,
        "role": role,
        "namespaces": namespaces,
    }
    connection.execute(tokens.insert().values(values))


def get(connection: Connection, identity: str) -> Row[Any] | None:
    """One token, also a revoked one."""
    return connection.execute(select(tokens).where(tokens.c.id == identity)).first()


def listed(connection: Connection) -> list[Row[Any]]:
    """All tokens, oldest first."""
    return list(connection.execute(select(tokens).order_by(tokens.c.created_at, tokens.c.id)))


def any_issued(connection: Connection) -> bool:
    """Whether there ever was a token, revoked and expired ones included."""
    return connection.execute(select(tokens.c.id).limit(1)).first() is not None


def revoke(connection: Connection, identity: str) -> bool:
    """Ends a token; False if there is none of this id that still lives."""
    mine = (tokens.c.id == identity) & tokens.c.revoked_at.is_(None)
    return connection.execute(update(tokens).where(mine).values(revoked_at=epoch())).rowcount > 0


def now(connection: Connection) -> float:
    """The present moment by the database's clock."""
    return float(connection.execute(select(epoch())).scalar_one())
