"""Tokens: issued, verified and revoked; only the hash of the secret is stored."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from pydantic import BaseModel
from sqlalchemy import ColumnElement, Connection, Row, delete, func, or_, select, update

from ..errors import InvalidRequestError, NotFoundError, TokenExistsError
from ..storage.database import Database
from ..storage.sql import epoch, insert, starts_with, to_datetime
from ..storage.tables import leases, tokens
from .access import EVERYWHERE, Principal, Role
from .log import write_log

__all__ = [
    "Issued",
    "Token",
    "VerifiedToken",
    "any_issued",
    "count_valid",
    "issue",
    "list_tokens",
    "list_unexpired",
    "revoke",
    "verify",
]

_PREFIX = "dejavu"
"""Starts every token, so that secret scanners recognise one."""


class Token(BaseModel):
    """A token without its secret.

    Attributes:
        grants: Its roles by namespace, by the beginning of namespaces' names, or by `*`.
    """

    id: str
    name: str
    grants: dict[str, Role]
    created: datetime
    expires: datetime | None = None
    revoked: datetime | None = None


class Issued(Token):
    """A new token with its secret, which is shown only once."""

    token: str


class VerifiedToken(NamedTuple):
    """The principal of a token, and the seconds until it expires (None if it never does)."""

    principal: Principal
    expires_in: float | None


def issue(
    database: Database,
    principal: Principal,
    name: str,
    role: Role,
    namespaces: Sequence[str],
    ttl: float | None,
    grants: Mapping[str, Role] | None = None,
    identity: str | None = None,
) -> Issued:
    """Issue a token.

    Args:
        database: The server's database.
        principal: Who asks; needs the role `admin` in all namespaces.
        name: Who or what will use the token.
        role: The role of the token in `namespaces`.
        namespaces: Namespaces, beginnings of namespaces' names and a star, or `EVERYWHERE`.
        ttl: Seconds until the token expires; None if it never does.
        grants: The roles of the token in further namespaces.
        identity: The id of the token; by default a random one.

    Raises:
        AccessDeniedError: The principal is not an admin of all namespaces.
        TokenExistsError: There is or was a token of this id.
        InvalidRequestError: The token would have no namespace, or two roles in one.
    """
    principal.require("admin", EVERYWHERE)
    roles = _roles(role, namespaces, grants or {})
    identity, secret = identity or secrets.token_hex(8), secrets.token_urlsafe(32)
    with database.write() as connection:
        statement = insert(connection, tokens).values(
            id=identity,
            name=name,
            digest=_digest(secret),
            grants=json.dumps(roles, sort_keys=True),
            created_at=epoch(),
            expires_at=None if ttl is None else epoch() + ttl,
        )
        if not connection.execute(statement.on_conflict_do_nothing()).rowcount:
            raise TokenExistsError(f"there is a token {identity} already")
        token = _token(connection.execute(select(tokens).filter_by(id=identity)).one())
        write_log(
            connection, principal, "create token", "", id=identity, name=name, grants=token.grants
        )
    return Issued(**token.model_dump(), token=f"{_PREFIX}_{identity}_{secret}")


def _roles(role: Role, namespaces: Sequence[str], grants: Mapping[str, Role]) -> dict[str, Role]:
    roles: dict[str, Role] = dict.fromkeys(namespaces, role)
    twice = sorted(name for name, other in grants.items() if roles.get(name, other) != other)
    if twice:
        raise InvalidRequestError(f"the token would have two roles for {', '.join(twice)}")
    roles.update(grants)
    if not roles:
        raise InvalidRequestError("name at least one namespace that the token may use")
    return roles


def list_tokens(
    database: Database, principal: Principal, after: str = "", limit: int | None = None
) -> list[Token]:
    """List tokens by their ids, also expired and revoked ones: all, or some after an id."""
    principal.require("admin", EVERYWHERE)
    query = select(tokens).where(tokens.c.id > after).order_by(tokens.c.id).limit(limit)
    with database.read() as connection:
        return [_token(row) for row in connection.execute(query)]


def list_unexpired(database: Database, principal: Principal, limit: int) -> list[Token]:
    """List tokens that have not expired: first those that never will, and of each the newest."""
    principal.require("admin", EVERYWHERE)
    query = (
        select(tokens)
        .where(_lives())
        .order_by(tokens.c.expires_at.is_not(None), tokens.c.created_at.desc(), tokens.c.id)
        .limit(limit)
    )
    with database.read() as connection:
        return [_token(row) for row in connection.execute(query)]


def any_issued(connection: Connection) -> bool:
    """Return whether any token was ever issued, including expired and revoked ones."""
    return connection.execute(select(tokens.c.id).limit(1)).first() is not None


def count_valid(connection: Connection, beginning: str) -> int:
    """Count the tokens that have not expired, revoked ones included, by how their ids begin."""
    query = select(func.count()).where(starts_with(tokens.c.id, beginning), _lives())
    return connection.execute(query).scalar_one()


def _lives() -> ColumnElement[bool]:
    return or_(tokens.c.expires_at.is_(None), tokens.c.expires_at > epoch())


def revoke(database: Database, principal: Principal, identity: str) -> None:
    """Revoke a token, and release its leases: nobody else could before they expire.

    Raises:
        AccessDeniedError: The principal is not an admin of all namespaces.
        NotFoundError: There is no token of this id, or it is revoked already.
    """
    principal.require("admin", EVERYWHERE)
    with database.write() as connection:
        query = select(tokens).filter_by(id=identity, revoked_at=None).with_for_update()
        row = connection.execute(query).one_or_none()
        if row is None:
            raise NotFoundError(f"there is no token {identity!r} that could be revoked")
        connection.execute(update(tokens).filter_by(id=identity).values(revoked_at=epoch()))
        connection.execute(delete(leases).where(leases.c.owner == _name(row)))
        write_log(connection, principal, "revoke token", "", id=identity, name=row.name)


def verify(database: Database, presented: str) -> VerifiedToken | None:
    """Look up the principal of a token; None if the token is wrong, expired or revoked."""
    prefix, _, rest = presented.partition("_")
    identity, _, secret = rest.partition("_")
    if prefix != _PREFIX or not identity.isascii() or not identity.isalnum():
        return None
    with database.read() as connection:
        columns = (*tokens.c, (tokens.c.expires_at - epoch()).label("expires_in"))
        row = connection.execute(select(*columns).where(tokens.c.id == identity)).one_or_none()
    # The comparison takes the same time for an unknown token as for a known one.
    same = hmac.compare_digest(_digest(secret), row.digest if row else _digest(""))
    if row is None or not same or row.revoked_at is not None:
        return None
    if row.expires_in is not None and row.expires_in <= 0:
        return None
    return VerifiedToken(Principal(_name(row), json.loads(row.grants)), row.expires_in)


def _name(row: Row[Any]) -> str:
    """Return the name of a token's principal."""
    return f"{row.name} ({row.id})"


def _digest(secret: str) -> str:
    # A plain hash suffices: a secret of 256 random bits cannot be guessed from it.
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _token(row: Row[Any]) -> Token:
    return Token(
        id=row.id,
        name=row.name,
        grants=json.loads(row.grants),
        created=to_datetime(row.created_at),
        expires=None if row.expires_at is None else to_datetime(row.expires_at),
        revoked=None if row.revoked_at is None else to_datetime(row.revoked_at),
    )
