"""What routes have in common: the parts of paths, and who asks."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from ..problems import RESPONSES
from ..server_parts import Server
from ..services.access import NAMESPACE, Principal
from .json_body import StrictRoute

__all__ = [
    "Asking",
    "ContextDigest",
    "Here",
    "KernelName",
    "Namespace",
    "ScenarioDigest",
    "json_text",
    "router",
    "shows",
]

_DIGEST = r"^[0-9a-f]{24}$"
_PLAIN = r"^[^\x00-\x1f\x7f]+$"

Namespace = Annotated[
    str, Path(pattern=NAMESPACE, description="A namespace, such as `main` or `pr-123`")
]
ContextDigest = Annotated[str, Path(pattern=_DIGEST, description="The digest of a context")]
ScenarioDigest = Annotated[str, Path(pattern=_DIGEST, description="The digest of a scenario")]
KernelName = Annotated[
    str | None, Query(min_length=1, max_length=500, pattern=_PLAIN, description="One kernel only")
]


class Asking(NamedTuple):
    """Who asks, and the server that is asked."""

    who: Principal
    server: Server


async def _asking(request: Request) -> Asking:
    return Asking(request.scope["principal"], request.app.state.server)


Here = Annotated[Asking, Depends(_asking)]


def router() -> APIRouter:
    """A router for paths under `/v1` whose refusals are in the OpenAPI."""
    return APIRouter(prefix="/v1", route_class=StrictRoute, responses=RESPONSES)


def shows(model: str, content_type: str = "application/json") -> dict[int | str, dict[str, Any]]:
    """The OpenAPI of an answer that is sent as the text it is kept as."""
    return {200: {"content": {content_type: {"schema": {"$ref": f"#/components/schemas/{model}"}}}}}


def json_text(text: str) -> Response:
    """An answer that is JSON already."""
    return Response(text, media_type="application/json")
