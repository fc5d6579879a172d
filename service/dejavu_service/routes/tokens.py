"""`/v1/tokens`."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field, StrictFloat

from ..services import tokens as rules
from ..services.access import Role
from .common import Here, router

__all__ = ["tokens"]

tokens = router()

_Place = Annotated[str, Field(pattern=r"^(\*|[A-Za-z0-9][A-Za-z0-9._-]{0,63})$")]


class TokenWish(BaseModel):
    """What a new token may do, and where."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")
    role: Role
    namespaces: list[_Place] = Field(min_length=1, max_length=100)
    days: StrictFloat | None = Field(default=None, gt=0, le=3650, allow_inf_nan=False)
    """For how long; without it, until it is revoked."""


class Tokens(BaseModel):
    """All tokens, without their secrets."""

    tokens: list[rules.Token]


@tokens.post("/tokens", status_code=201)
def create_token(wish: TokenWish, here: Here) -> rules.Issued:
    """Makes a token; its secret is in this answer and nowhere else."""
    seconds = None if wish.days is None else wish.days * 86400
    return rules.issue(
        here.server.database, here.who, wish.name, wish.role, wish.namespaces, seconds
    )


@tokens.get("/tokens")
def list_tokens(here: Here) -> Tokens:
    """Tokens, revoked ones too."""
    return Tokens(tokens=rules.listed(here.server.database, here.who))


@tokens.delete("/tokens/{token}", status_code=204)
def revoke_token(token: Annotated[str, Path(pattern=r"^[0-9a-f]{16}$")], here: Here) -> None:
    """Ends a token; other replicas notice within seconds."""
    rules.revoke(here.server.database, here.who, token)
    here.server.identities.forget()
