"""Routes of `/v1/tokens`, and of `/v1/token-exchange`."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field, StrictFloat
from starlette.concurrency import run_in_threadpool

from ..errors import InvalidRequestError, NotFoundError
from ..server import EXCHANGE_PATH
from ..services import tokens
from ..services.access import NAMESPACE_PATTERN, Role
from .common import CurrentCall, accepts, read_json, takes_own_turn, versioned_router

__all__ = ["TokenWish", "router"]

router = versioned_router()

_Pattern = Annotated[str, Field(pattern=NAMESPACE_PATTERN)]
_ID = r"^[0-9a-f]{16}$"
_LARGEST = 32 * 1024
"""Bytes of a body with an identity token."""


class TokenWish(BaseModel):
    """The name, roles by namespace and lifetime of a new token."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")
    role: Role
    namespaces: list[_Pattern] = Field(default_factory=list, max_length=100)
    grants: dict[_Pattern, Role] = Field(default_factory=dict, max_length=100)
    """The roles in namespaces in which it is not `role`."""
    days: StrictFloat | None = Field(default=None, gt=0, le=3650, allow_inf_nan=False)
    """Days until the token expires; None if it never does."""

    @property
    def ttl(self) -> float | None:
        """Seconds until the token expires; None if it never does."""
        return None if self.days is None else self.days * 86400


class TokenPage(BaseModel):
    """Tokens without their secrets, and the id to continue after; null on the last page."""

    tokens: list[tokens.Token]
    next: str | None


@router.post("/tokens", status_code=201)
@accepts("admin")
def create_token(wish: TokenWish, call: CurrentCall) -> tokens.Issued:
    """Issue a token; its secret is in this answer and nowhere else."""
    rights = wish.role, wish.namespaces, wish.ttl, wish.grants
    issued = tokens.issue(call.database, call.principal, wish.name, *rights)
    call.server.principals.clear()  # from the first token on, nobody is answered without one
    return issued


@router.get("/tokens")
def list_tokens(
    call: CurrentCall,
    after: Annotated[str | None, Query(pattern=_ID)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> TokenPage:
    """List all tokens, including expired and revoked ones, page by page."""
    listed = tokens.list_tokens(call.database, call.principal, after or "", limit + 1)
    is_last = len(listed) <= limit
    return TokenPage(tokens=listed[:limit], next=None if is_last else listed[limit - 1].id)


@router.delete("/tokens/{token}", status_code=204)
def revoke_token(token: Annotated[str, Path(pattern=_ID)], call: CurrentCall) -> None:
    """Revoke a token; other replicas notice within seconds."""
    tokens.revoke(call.database, call.principal, token)
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
async def exchange_token(request: Request, call: CurrentCall) -> tokens.Issued:
    """Issue a short-lived token of this server for an identity token, by the server's rules."""
    exchange = call.server.identities
    if exchange is None:
        raise NotFoundError("this server exchanges no tokens: its admin sets DEJAVU_SERVER_OIDC")
    sent = await read_json(request, IdentityToken, _LARGEST)
    if sent is None:
        raise InvalidRequestError('send {"token": TEXT}')
    async with call.server.exchanging:
        return await run_in_threadpool(exchange.exchange, call.database, sent.token)
