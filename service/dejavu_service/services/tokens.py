"""Tokens: issued, verified and revoked; only the hash of the secret is stored.

An identity token of another issuer is exchanged for one of these.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, NamedTuple

from fastapi import Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field, StrictFloat
from sqlalchemy import ColumnElement, Connection, Row, delete, func, or_, select, update
from starlette.concurrency import run_in_threadpool

from ..errors import InvalidRequestError, NotFoundError, TokenExistsError
from ..storage.database import Database
from ..storage.sql import epoch, insert, starts_with, to_datetime
from ..storage.tables import leases, tokens
from .access import EVERYWHERE, NAMESPACE_PATTERN, Principal, Role
from .log import write_log
from .requests import (
    CurrentCall,
    ShortText,
    accepts,
    read_json,
    takes_own_turn,
    versioned_router,
)

__all__ = [
    "EXCHANGE_PATH",
    "Issued",
    "Token",
    "TokenWish",
    "VerifiedToken",
    "any_issued",
    "count_valid",
    "issue",
    "list_tokens",
    "revoke",
    "router",
    "verify",
]

router = versioned_router()

EXCHANGE_PATH = "/v1/token-exchange"
_PREFIX = "dejavu"
"""Starts every token, so that secret scanners recognise one."""
_ID = r"^[0-9a-f]{16}$"
_LARGEST = 32 * 1024
"""Bytes of a body with an identity token."""
_Pattern = Annotated[str, Field(pattern=NAMESPACE_PATTERN)]


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


class TokenWish(BaseModel):
    """The name, roles by namespace and lifetime of a new token."""

    model_config = ConfigDict(extra="forbid")

    name: ShortText
    grants: dict[_Pattern, Role] = Field(min_length=1, max_length=100)
    days: StrictFloat | None = Field(default=None, gt=0, le=3650, allow_inf_nan=False)
    """Days until the token expires; None if it never does."""

    @property
    def ttl(self) -> float | None:
        """Seconds until the token expires; None if it never does."""
        return None if self.days is None else self.days * 86400


class VerifiedToken(NamedTuple):
    """The principal of a token, and the seconds until it expires (None if it never does)."""

    principal: Principal
    expires_in: float | None


def issue(
    database: Database,
    principal: Principal,
    name: str,
    grants: Mapping[str, Role],
    ttl: float | None = None,
    identity: str | None = None,
) -> Issued:
    """Issue a token.

    Args:
        database: The server's database.
        principal: Who asks; needs the role `admin` in all namespaces.
        name: Who or what will use the token.
        grants: The roles of the token, as a principal has them.
        ttl: Seconds until the token expires; None if it never does.
        identity: The id of the token; by default a random one.

    Raises:
        AccessDeniedError: The principal is not an admin of all namespaces.
        TokenExistsError: There is or was a token of this id.
    """
    principal.require("admin", EVERYWHERE)
    identity, secret = identity or secrets.token_hex(8), secrets.token_urlsafe(32)
    with database.write() as connection:
        statement = insert(connection, tokens).values(
            id=identity,
            name=name,
            digest=_digest(secret),
            grants=json.dumps(dict(grants), sort_keys=True),
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


def list_tokens(
    database: Database, principal: Principal, after: str = "", limit: int | None = None
) -> list[Token]:
    """List tokens by their ids, also expired and revoked ones: all, or some after an id."""
    principal.require("admin", EVERYWHERE)
    query = select(tokens).where(tokens.c.id > after).order_by(tokens.c.id).limit(limit)
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


class TokenPage(BaseModel):
    """Tokens without their secrets, and the id to continue after; null on the last page."""

    tokens: list[Token]
    next: str | None


@router.post("/tokens", status_code=201)
@accepts("admin")
def create_token(wish: TokenWish, call: CurrentCall) -> Issued:
    """Issue a token; its secret is in this answer and nowhere else."""
    issued = issue(call.database, call.principal, wish.name, wish.grants, wish.ttl)
    call.server.principals.clear()  # from the first token on, nobody is answered without one
    return issued


@router.get("/tokens")
def list_token_page(
    call: CurrentCall,
    after: Annotated[str | None, Query(pattern=_ID)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> TokenPage:
    """List all tokens, including expired and revoked ones, page by page."""
    listed = list_tokens(call.database, call.principal, after or "", limit + 1)
    is_last = len(listed) <= limit
    return TokenPage(tokens=listed[:limit], next=None if is_last else listed[limit - 1].id)


@router.delete("/tokens/{token}", status_code=204)
def revoke_token(token: Annotated[str, Path(pattern=_ID)], call: CurrentCall) -> None:
    """Revoke a token; other replicas notice within seconds."""
    revoke(call.database, call.principal, token)
    call.server.principals.clear()


class IdentityToken(BaseModel):
    """A token that another issuer signed, for this server's audience."""

    model_config = ConfigDict(extra="forbid")

    token: str = Field(min_length=1)


@router.post(
    EXCHANGE_PATH.removeprefix("/v1"),
    status_code=201,
    openapi_extra={
        "security": [],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": IdentityToken.model_json_schema()}},
        },
    },
)
@takes_own_turn
async def exchange_token(request: Request, call: CurrentCall) -> Issued:
    """Issue a short-lived token of this server for an identity token, by the server's rules."""
    exchange = call.server.identities
    if exchange is None:
        raise NotFoundError("this server exchanges no tokens: its admin sets DEJAVU_SERVER_OIDC")
    sent = await read_json(request, IdentityToken, _LARGEST)
    if sent is None:
        raise InvalidRequestError('send {"token": TEXT}')
    async with call.server.exchanging:
        return await run_in_threadpool(exchange.exchange, call.database, sent.token)
