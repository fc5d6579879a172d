"""Tokens: issued, verified and revoked; only the hash of the secret is stored.

An identity token of another issuer is exchanged for one of these.
"""

import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictFloat
from sqlalchemy import Row, delete, or_, select, update

from ..errors import InvalidRequestError, NotFoundError
from ..storage.database import Database
from ..storage.sql import epoch, insert, to_datetime
from ..storage.tables import leases, tokens
from .access import ANYBODY, NAMESPACE_PATTERN, Principal, Role
from .log import write_log
from .requests import CurrentCall, ShortText, accepts, versioned_router

router = versioned_router()

EXCHANGE_PATH = "/v1/token-exchange"
_PREFIX = "dejavu"
"""Starts every token, so that secret scanners recognise one."""
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


class TokenRequest(BaseModel):
    """The name, roles by namespace and lifetime of a new token."""

    model_config = ConfigDict(extra="forbid")

    name: ShortText
    grants: dict[_Pattern, Role] = Field(min_length=1, max_length=100)
    days: StrictFloat | None = Field(default=None, gt=0, le=3650, allow_inf_nan=False)
    """Days until the token expires; None if it never does."""


def issue(
    database: Database,
    principal: Principal,
    name: str,
    grants: Mapping[str, Role],
    ttl: float | None = None,
    identity: str | None = None,
) -> Issued:
    """Issue a token that expires after `ttl` seconds, or never; by default its id is random.

    Raises:
        InvalidRequestError: There is or was a token of this id.
    """
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
            raise InvalidRequestError(f"there is a token {identity} already")
        token = _token(connection.execute(select(tokens).filter_by(id=identity)).one())
        write_log(
            connection, principal, "create token", "", id=identity, name=name, grants=token.grants
        )
    return Issued(**token.model_dump(), token=f"{_PREFIX}_{identity}_{secret}")


def list_tokens(database: Database) -> list[Token]:
    """List all tokens, also expired and revoked ones, the oldest first."""
    query = select(tokens).order_by(tokens.c.created_at, tokens.c.id)
    with database.read() as connection:
        return [_token(row) for row in connection.execute(query)]


def any_issued(database: Database) -> bool:
    """Return whether any token was ever issued, so that requests need one."""
    with database.read() as connection:
        return connection.execute(select(tokens.c.id).limit(1)).first() is not None


def revoke(database: Database, identity: str) -> None:
    """Revoke a token, and release its leases: nobody else could before they expire.

    Raises:
        NotFoundError: There is no token of this id, or it is revoked already.
    """
    with database.write() as connection:
        query = select(tokens).filter_by(id=identity, revoked_at=None).with_for_update()
        row = connection.execute(query).one_or_none()
        if row is None:
            raise NotFoundError(f"there is no token {identity!r} that could be revoked")
        connection.execute(update(tokens).filter_by(id=identity).values(revoked_at=epoch()))
        connection.execute(delete(leases).where(leases.c.owner == _name(row)))
        write_log(connection, ANYBODY, "revoke token", "", id=identity, name=row.name)


def verify(database: Database, presented: str | None) -> Principal | None:
    """Return a token's principal; None if it is wrong, expired, revoked, or missing and needed."""
    if presented is None:
        return None if any_issued(database) else ANYBODY
    prefix, _, rest = presented.partition("_")
    identity, _, secret = rest.partition("_")
    if prefix != _PREFIX or not identity.isascii() or not identity.isalnum():
        return None
    lives = or_(tokens.c.expires_at.is_(None), tokens.c.expires_at > epoch())
    query = select(tokens).filter_by(id=identity, revoked_at=None).where(lives)
    with database.read() as connection:
        row = connection.execute(query).one_or_none()
    # The comparison takes the same time for an unknown token as for a known one.
    same = hmac.compare_digest(_digest(secret), row.digest if row else _digest(""))
    return Principal(_name(row), json.loads(row.grants)) if row and same else None


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


class IdentityToken(BaseModel):
    """A token that another issuer signed, for this server's audience."""

    model_config = ConfigDict(extra="forbid")

    token: str = Field(min_length=1, max_length=16 * 1024)


@router.post(EXCHANGE_PATH.removeprefix("/v1"), status_code=201, openapi_extra={"security": []})
@accepts(None)
def exchange_token(sent: IdentityToken, call: CurrentCall) -> Issued:
    """Issue a short-lived token of this server for an identity token, by the server's rules."""
    exchange = call.server.identities
    if exchange is None:
        raise NotFoundError("this server exchanges no tokens: its admin sets DEJAVU_SERVER_OIDC")
    return exchange.exchange(call.database, sent.token)
