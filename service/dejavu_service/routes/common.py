"""What routes share: path parameters, the call, and the checks of bodies.

Who may send a body, of what type and size, is decided before anything of it is read; it is parsed
in a thread, and the route runs in its turn.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Annotated, Any, NamedTuple, TypeVar

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.convertors import StringConvertor, register_url_convertor

from ..errors import AccessDeniedError
from ..problems import RESPONSES, ProblemError
from ..server import Server
from ..services.access import EVERYWHERE, NAMESPACE, READER, Principal, Role
from ..services.json_text import InvalidJsonError, InvalidValueError, validate_json
from ..storage.database import Database

__all__ = [
    "DIGEST",
    "Call",
    "ContextDigest",
    "CurrentCall",
    "KernelName",
    "Namespace",
    "ScenarioDigest",
    "accepts",
    "body_chunks",
    "json_response",
    "media_type",
    "read_body",
    "read_json",
    "responds_with",
    "takes_own_turn",
    "versioned_router",
]

_Endpoint = TypeVar("_Endpoint", bound=Callable[..., Any])
_Model = TypeVar("_Model", bound=BaseModel)
_Handler = Callable[[Request], Coroutine[Any, Any, Response]]

DIGEST = r"^[0-9a-f]{24}$"
"""Pattern of the digests of contexts, scenarios and configs."""
_NO_CONTROL_CHARACTERS = r"^[^\x00-\x1f\x7f]+$"
_LARGE = 128 * 1024
"""Bytes of a body beyond which it is read only in its turn."""

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
    return APIRouter(prefix="/v1", route_class=_StrictRoute, responses=RESPONSES)


def responds_with(model: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI of a JSON answer that is sent as stored text, without its model."""
    return {200: {"model": model}}


def json_response(text: str) -> Response:
    """Build a response from JSON text."""
    return Response(text, media_type="application/json")


class _BodyRule(NamedTuple):
    """The role that a route's body needs, its largest size, and whether the route writes."""

    role: Role
    max_bytes: int | None
    writes: bool


def accepts(
    role: Role, max_bytes: int | None = 64 * 1024, *, writes: bool = True
) -> Callable[[_Endpoint], _Endpoint]:
    """Declare who may send a body to an endpoint, which every endpoint with a body must do.

    Args:
        role: The role that is needed in the path's namespace, or in all if the path has none.
        max_bytes: The largest size; None for the server's setting `max_body`, the limit of all.
        writes: Whether the endpoint writes, which nobody may without a token of their own.
    """

    def declare(endpoint: _Endpoint) -> _Endpoint:
        vars(endpoint)["body_rule"] = _BodyRule(role, max_bytes, writes)
        return endpoint

    return declare


def takes_own_turn(endpoint: _Endpoint) -> _Endpoint:
    """Declare that an endpoint reads its body itself, and takes its turn to write later."""
    vars(endpoint)["takes_own_turn"] = True
    return endpoint


class _StrictRoute(APIRoute):
    """A route that writes in its turn, and whose body is read and validated before FastAPI asks."""

    def get_route_handler(self) -> _Handler:
        """Return FastAPI's handler behind the checks of the body.

        Raises:
            TypeError: The endpoint has a body and does not declare who may send it.
        """
        handler = super().get_route_handler()
        if self.body_field is None:
            is_read = (self.methods or set()) <= {"GET", "HEAD"}
            has_turn = is_read or hasattr(self.endpoint, "takes_own_turn")
            return handler if has_turn else _write_in_turn(handler)
        rule = getattr(self.endpoint, "body_rule", None)
        if not isinstance(rule, _BodyRule):
            raise TypeError(f"{self.path} has a body: decorate its endpoint with @accepts(role)")
        return _read_body_first(handler, rule, self.body_field.field_info.annotation)


def _write_in_turn(handler: _Handler) -> _Handler:
    async def handle_in_turn(request: Request) -> Response:
        async with request.app.state.server.writing.turn(request.path_params.get("namespace")):
            return await handler(request)

    return handle_in_turn


def _read_body_first(handler: _Handler, rule: _BodyRule, model: Any) -> _Handler:
    write_in_turn = _write_in_turn(handler) if rule.writes else handler

    async def handle_strictly(request: Request) -> Response:
        server: Server = request.app.state.server
        principal: Principal = request.scope["principal"]
        principal.require(rule.role, request.path_params.get("namespace", EVERYWHERE))
        if rule.writes and principal is READER:
            raise AccessDeniedError("without a token you may only read here: send one")
        max_bytes = min(rule.max_bytes or server.settings.max_body, server.settings.max_body)
        turn: AbstractAsyncContextManager[None] = nullcontext()
        if _declared_size(request, _LARGE + 1) > _LARGE:
            turn = server.large_bodies.turn(principal.name)
        async with turn:
            body = await read_json(request, model, max_bytes)
            # FastAPI only asks whether there is a body, and for the value of its JSON.
            request._body, request._json = b"{}" if body else b"", body
            return await write_in_turn(request)

    return handle_strictly


async def read_json(request: Request, model: type[_Model], max_bytes: int) -> _Model | None:
    """Read a body of JSON and validate it in a thread; None if it is empty.

    Raises:
        ClientDisconnect: The client hung up before the end.
        ProblemError: 400, 413 or 415: it is not JSON, too long, or not said to be JSON.
        RequestValidationError: It is no value of the model.
    """
    # No page of another site can send this type unasked.
    if media_type(request) != "application/json":
        raise ProblemError(415, "the body must be JSON: send  Content-Type: application/json")
    body = await read_body(request, max_bytes)
    if not body:
        return None
    try:
        async with request.app.state.server.parsing.turn(request.scope["principal"].name):
            return await run_in_threadpool(validate_json, body, model)
    except InvalidJsonError as error:
        raise ProblemError(400, f"the body is not JSON: {error}") from None
    except InvalidValueError as error:
        errors = [{**item, "loc": ("body", *item["loc"])} for item in error.errors]
        raise RequestValidationError(errors) from None


def media_type(request: Request) -> str:
    """Return the type of a request's body, without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Read a body into memory; the same errors as of `body_chunks`."""
    return b"".join([chunk async for chunk in body_chunks(request, max_bytes)])


async def body_chunks(request: Request, max_bytes: int) -> AsyncIterator[bytes]:
    """Yield a body as it arrives, counted whatever the headers declare.

    Raises:
        ClientDisconnect: The client hung up before the end.
        ProblemError: 413, it is too long.
    """
    too_long = ProblemError(
        413, f"the body has over {max_bytes} bytes: send fewer records at a time"
    )
    if _declared_size(request, 0) > max_bytes:
        raise too_long
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_bytes:
            raise too_long
        yield chunk


def _declared_size(request: Request, default: int) -> int:
    """Return the size of a body that the headers declare, or a default if they declare none."""
    declared = request.headers.get("content-length", "")
    return int(declared) if declared.isdigit() else default
