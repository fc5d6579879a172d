"""Tokens: made, listed, revoked; only their hash is kept."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any, NamedTuple

from pydantic import BaseModel
from sqlalchemy import Row

from ..problems import ProblemError
from ..storage import tokens
from ..storage.database import Database
from .access import EVERYWHERE, Principal, Role

__all__ = ["Issued", "Token", "check", "issue", "listed", "revoke"]

_PREFIX = "dejavu"
"""So that secret scanners can know one when they see it."""


class Token(BaseModel):
    """What may be shown of a token."""

    id: str
    name: str
    role: Role
    namespaces: list[str]
    created: datetime
    expires: datetime | None = None
    revoked: datetime | None = None


class Issued(Token):
    """A token with its secret, which is shown this once."""

    token: str


class Checked(NamedTuple):
    """Whose a token is, and the seconds for which it still holds (None without end)."""

    who: Principal
    expires_in: float | None


def issue(
    database: Database,
    who: Principal,
    name: str,
    role: Role,
    namespaces: Sequence[str],
    ttl: float | None,
) -> Issued:
    """Makes a token.

    Raises:
        ProblemError: 403: only an admin of all namespaces may.
    """
    who.require("admin", EVERYWHERE)
    identity, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
    with database.write() as connection:
        kept = json.dumps(sorted(set(namespaces)))
        tokens.add(connection, identity, name, _digest(secret), role, kept, ttl)
        row = tokens.get(connection, identity)
    assert row is not None
    return Issued(**_shown(row).model_dump(), token=f"{_PREFIX}_{identity}_{secret}")


def listed(database: Database, who: Principal) -> list[Token]:
    """All tokens, oldest first, without their secrets."""
    who.require("admin", EVERYWHERE)
    with database.read() as connection:
        return [_shown(row) for row in tokens.listed(connection)]


def revoke(database: Database, who: Principal, identity: str) -> None:
    """Ends a token.

    Raises:
        ProblemError: 403, or 404 if no token of this id lives.
    """
    who.require("admin", EVERYWHERE)
    with database.write() as connection:
        if not tokens.revoke(connection, identity):
            raise ProblemError(404, f"there is no token {identity!r} that could be revoked")


def check(database: Database, presented: str) -> Checked | None:
    """Whose token this is, or None if it is wrong, expired or revoked."""
    prefix, _, rest = presented.partition("_")
    identity, _, secret = rest.partition("_")
    if prefix != _PREFIX or not identity.isascii() or not identity.isalnum():
        return None
    with database.read() as connection:
        row = tokens.get(connection, identity)
        moment = tokens.now(connection)
    # Compared in constant time, also where there is nothing to compare with.
    same = hmac.compare_digest(_digest(secret), row.digest if row else _digest(""))
    if row is None or not same or row.revoked_at is not None:
        return None
    left = None if row.expires_at is None else row.expires_at - moment
    if left is not None and left <= 0:
        return None
    return Checked(
        Principal(f"{row.name} ({row.id})", row.role, frozenset(json.loads(row.namespaces))), left
    )


def _digest(secret: str) -> str:
    # A plain hash is enough for 256 random bits.
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _shown(row: Row[Any]) -> Token:
    return Token(
        id=row.id,
        name=row.name,
        role=row.role,
        namespaces=json.loads(row.namespaces),
        created=_moment(row.created_at),
        expires=None if row.expires_at is None else _moment(row.expires_at),
        revoked=None if row.revoked_at is None else _moment(row.revoked_at),
    )


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)
