"""Route of `/v1/token-exchange`."""

from __future__ import annotations

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from ..errors import NotFoundError
from ..middleware.authentication import EXCHANGE_PATH
from ..middleware.bodies import check_media_type, read_body
from ..problems import RESPONSES, ProblemError
from ..services.json_text import InvalidJsonError, InvalidValueError, validate_json
from ..services.tokens import Issued
from .common import CurrentCall

__all__ = ["router"]

router = APIRouter(responses=RESPONSES)

_LARGEST = 32 * 1024


class IdentityToken(BaseModel):
    """A token that another issuer signed, for this server's audience."""

    model_config = ConfigDict(extra="forbid")

    token: str = Field(min_length=1)


@router.post(
    EXCHANGE_PATH,
    status_code=201,
    openapi_extra={
        "security": [],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": IdentityToken.model_json_schema()}},
        },
    },
)
async def exchange_token(request: Request, call: CurrentCall) -> Issued:
    """Issue a short-lived token of this server for an identity token, by the server's rules."""
    exchange = call.server.identities
    if exchange is None:
        raise NotFoundError("this server exchanges no tokens: its admin sets DEJAVU_SERVER_OIDC")
    check_media_type(request)
    body = await read_body(request, _LARGEST)
    try:
        sent: IdentityToken = validate_json(body, IdentityToken)
    except (InvalidJsonError, InvalidValueError) as error:
        raise ProblemError(400, f'send {{"token": TEXT}}: {error}') from None
    async with call.server.exchanging:
        return await run_in_threadpool(exchange.exchange, call.database, sent.token)
