"""Tokens, with the hash of their secret."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, delete, func, or_, select, update

from .sql import epoch, insert, starts_with
from .tables import tokens

__all__ = [
    "add",
    "any_issued",
    "count_valid",
    "drop_expired",
    "get",
    "list_tokens",
    "list_unexpired",
    "revoke",
]


def add(
    connection: Connection,
    identity: str,
    name: str,
    digest: str,
    grants: str,
    ttl: float | None,
) -> bool:
    """Insert a token that expires in `ttl` seconds, or never if None; return False if it exists."""
    values = {
        "id": identity,
        "name": name,
        "digest": digest,
        "grants": grants,
        "created_at": epoch(),
        "expires_at": None if ttl is None else epoch() + ttl,
    }
    statement = insert(connection, tokens).values(values).on_conflict_do_nothing()
    return bool(connection.execute(statement).rowcount)


def get(connection: Connection, identity: str) -> Row[Any] | None:
    """Load a token, even if it is revoked; None if it does not exist."""
    return connection.execute(select(tokens).where(tokens.c.id == identity)).first()


def list_tokens(connection: Connection, after: str, limit: int | None) -> list[Row[Any]]:
    """List tokens whose id comes after another one, ordered by it; all of them if unlimited."""
    query = select(tokens).where(tokens.c.id > after).order_by(tokens.c.id).limit(limit)
    return list(connection.execute(query))


def list_unexpired(connection: Connection, limit: int) -> list[Row[Any]]:
    """List tokens that have not expired: first those that never will, and of each the newest."""
    query = (
        select(tokens)
        .where(_lives())
        .order_by(tokens.c.expires_at.is_not(None), tokens.c.created_at.desc(), tokens.c.id)
        .limit(limit)
    )
    return list(connection.execute(query))


def any_issued(connection: Connection) -> bool:
    """Return whether any token was ever issued, including expired and revoked ones."""
    return connection.execute(select(tokens.c.id).limit(1)).first() is not None


def count_valid(connection: Connection, beginning: str) -> int:
    """Count the tokens that have not expired, revoked ones included, by how their ids begin."""
    query = select(func.count()).where(starts_with(tokens.c.id, beginning), _lives())
    return connection.execute(query).scalar_one()


def _lives() -> ColumnElement[bool]:
    return or_(tokens.c.expires_at.is_(None), tokens.c.expires_at > epoch())


def revoke(connection: Connection, identity: str) -> bool:
    """Revoke a token; return False if it does not exist or is revoked already."""
    live = (tokens.c.id == identity) & tokens.c.revoked_at.is_(None)
    return connection.execute(update(tokens).where(live).values(revoked_at=epoch())).rowcount > 0


def drop_expired(connection: Connection, seconds: float) -> int:
    """Delete tokens that expired more than `seconds` ago, if others remain; return their number.

    A server whose last token is gone would answer without one.
    """
    limit = epoch() - seconds
    others = tokens.alias()
    remaining = select(others.c.id).where(
        or_(others.c.expires_at.is_(None), others.c.expires_at >= limit)
    )
    expired = delete(tokens).where(tokens.c.expires_at < limit, remaining.exists())
    return connection.execute(expired).rowcount
