"""Path parameters, the caller's principal, and helpers that routes share."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import BaseModel
from starlette.convertors import StringConvertor, register_url_convertor

from ..middleware.bodies import StrictRoute
from ..problems import RESPONSES
from ..server import Server
from ..services.access import NAMESPACE, Principal
from ..storage.database import Database

__all__ = [
    "DIGEST",
    "Call",
    "ContextDigest",
    "CurrentCall",
    "KernelName",
    "Namespace",
    "ScenarioDigest",
    "json_response",
    "responds_with",
    "versioned_router",
]

DIGEST = r"^[0-9a-f]{24}$"
"""Pattern of the digests of contexts, scenarios and configs."""
_NO_CONTROL_CHARACTERS = r"^[^\x00-\x1f\x7f]+$"

Namespace = Annotated[
    str, Path(pattern=NAMESPACE, description="A namespace, such as `main` or `pr-123`")
]
ContextDigest = Annotated[str, Path(pattern=DIGEST, description="The digest of a context")]
ScenarioDigest = Annotated[str, Path(pattern=DIGEST, description="The digest of a scenario")]
KernelName = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=500,
        pattern=_NO_CONTROL_CHARACTERS,
        description="One kernel only",
    ),
]


# A path that is not well-formed is no path of a route, with whatever method.
class _NamespaceConvertor(StringConvertor):
    regex = NAMESPACE.strip("^$")


class _DigestConvertor(StringConvertor):
    regex = DIGEST.strip("^$")


register_url_convertor("namespace", _NamespaceConvertor())
register_url_convertor("digest", _DigestConvertor())


class Call(NamedTuple):
    """The principal who makes a request, and the server that answers it.

    Attributes:
        credential: The token that the request presented; empty if it presented none.
    """

    principal: Principal
    server: Server
    credential: str = ""

    @property
    def database(self) -> Database:
        """Database of the server."""
        return self.server.database


async def _current_call(request: Request) -> Call:
    return Call(
        request.scope["principal"],
        request.app.state.server,
        request.scope.get("credential", ""),
    )


CurrentCall = Annotated[Call, Depends(_current_call)]


def versioned_router() -> APIRouter:
    """Create a router for `/v1` with strict JSON bodies and the refusals in its OpenAPI."""
    return APIRouter(prefix="/v1", route_class=StrictRoute, responses=RESPONSES)


def responds_with(model: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI of a JSON answer that is sent as stored text, without its model."""
    return {200: {"model": model}}


def json_response(text: str) -> Response:
    """Build a response from JSON text."""
    return Response(text, media_type="application/json")
