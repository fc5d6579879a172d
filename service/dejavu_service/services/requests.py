"""What a request brings: who sends it, its path, and its body, bounded before it takes memory.

Who may send a body, of what type and size, is decided before anything of it is read; it is parsed
in a thread, and the route runs in its turn.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field, ValidationError
from pydantic_core import from_json
from starlette.concurrency import run_in_threadpool
from starlette.convertors import StringConvertor, register_url_convertor

from ..errors import (
    AccessDeniedError,
    BadMediaError,
    InvalidJsonError,
    InvalidValueError,
    TooLargeError,
)
from ..problems import RESPONSES
from ..storage.database import Database
from .access import EVERYWHERE, NAMESPACE, READER, Principal, Role

if TYPE_CHECKING:
    from ..server import Server

_Endpoint = TypeVar("_Endpoint", bound=Callable[..., Any])
_Model = TypeVar("_Model", bound=BaseModel)
_Handler = Callable[[Request], Coroutine[Any, Any, Response]]

DIGEST = r"^[0-9a-f]{24}$"
"""Pattern of the digests of contexts, scenarios and configs."""
PRINTABLE = r"^[^\x00-\x1f\x7f]+$"
"""Pattern of a text without control characters."""
_LARGE = 32 * 1024
"""Bytes of a body beyond which it is read, and kept, only in a turn. What is wrong with one of so
many bytes may take 4 MiB to say, in each of 40 threads."""
MOST_VALUES = 100_000
"""Values of one request: each takes up to 100 bytes of memory, and 300 more if it is wrong, however
short it is written. A MiB of records, as clients send it, has some 65,000."""
MOST_RECORDS = 10_000
"""Records, copies or misses in one request: more would keep other writers waiting for seconds."""
_MOST_ERRORS = 20
"""Errors of a text that are listed."""
_MOST_COUNTED = 1000
"""Errors beyond which none is listed, because pydantic renders all of them or none."""
_LONGEST_MESSAGE = 300

Digest = Annotated[str, Field(pattern=DIGEST)]
ShortText = Annotated[str, Field(min_length=1, max_length=200, pattern=PRINTABLE)]
Namespace = Annotated[
    str, Path(pattern=NAMESPACE, description="A namespace, such as `main` or `pr-123`")
]
ContextDigest = Annotated[str, Path(pattern=DIGEST, description="The digest of a context")]
ScenarioDigest = Annotated[str, Path(pattern=DIGEST, description="The digest of a scenario")]
KernelName = Annotated[
    str | None,
    Query(min_length=1, max_length=500, pattern=PRINTABLE, description="One kernel only"),
]


# A path that is not well-formed is no path of a route, with whatever method.
class _NamespaceConvertor(StringConvertor):
    regex = NAMESPACE.strip("^$")


class _DigestConvertor(StringConvertor):
    regex = DIGEST.strip("^$")


register_url_convertor("namespace", _NamespaceConvertor())
register_url_convertor("digest", _DigestConvertor())


class Call(NamedTuple):
    """The principal who makes a request, and the server that answers it, with its database.

    Attributes:
        caller: For whom its turns count: the principal, or an address without a token.
        credential: The token that the request presented, if it presented one.
    """

    principal: Principal
    server: Server
    database: Database
    caller: str = ""
    credential: str | None = None


async def _current_call(request: Request) -> Call:
    server: Server = request.app.state.server
    scope = request.scope
    named = scope["caller"], scope.get("credential")
    return Call(scope["principal"], server, server.database, *named)


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


class _Rule(NamedTuple):
    role: Role | None
    max_bytes: int | None
    writes: bool


def accepts(
    role: Role | None, max_bytes: int | None = 64 * 1024, *, writes: bool = True
) -> Callable[[_Endpoint], _Endpoint]:
    """Declare who may send a body to an endpoint, which every endpoint with a body must do.

    Args:
        role: The role that is needed in the path's namespace; None if anybody may send one.
        max_bytes: The largest size; None for the server's setting `max_body`, the limit of all.
        writes: Whether the endpoint runs in a turn to write, which nobody gets who may only read
            since no token is needed for that.
    """

    def declare(endpoint: _Endpoint) -> _Endpoint:
        vars(endpoint)["rule"] = _Rule(role, max_bytes, writes)
        return endpoint

    return declare


class TurnRoute(APIRoute):
    """A route that makes few answers at a time, so that they leave programs memory and threads."""

    def get_route_handler(self) -> _Handler:
        """Return FastAPI's handler, behind the turns if it reads in a thread."""
        handler = super().get_route_handler()
        if self.methods != {"GET"} or iscoroutinefunction(self.endpoint):
            return handler  # a form may arrive slowly, and a coroutine holds no thread

        async def handle_in_turn(request: Request) -> Response:
            async with request.app.state.server.rendering.turn(request.scope["caller"]):
                return await handler(request)

        return handle_in_turn


class _StrictRoute(TurnRoute):
    """A route that writes in its turn, and whose body is read and validated before FastAPI asks."""

    def get_route_handler(self) -> _Handler:
        """Return FastAPI's handler behind the checks of the body.

        Raises:
            TypeError: The endpoint has a body and does not declare who may send it.
        """
        respond = super().get_route_handler()
        rule: _Rule | None = getattr(self.endpoint, "rule", None)
        model: Any = self.body_field.field_info.annotation if self.body_field else None
        if model is not None and rule is None:
            raise TypeError(f"{self.path} has a body: decorate its endpoint with @accepts(role)")
        writes = rule.writes if rule else not (self.methods or set()) <= {"GET", "HEAD"}

        async def handle(request: Request) -> Response:
            server: Server = request.app.state.server
            namespace = request.path_params.get("namespace")
            async with AsyncExitStack() as turns:
                principal, caller = request.scope["principal"], request.scope["caller"]
                if model is not None and rule is not None:
                    if rule.role is not None:
                        principal.require(rule.role, namespace or EVERYWHERE)
                    if writes and principal is READER:
                        raise AccessDeniedError("without a token you may only read here: send one")
                    largest = server.settings.max_body
                    largest = min(rule.max_bytes or largest, largest)
                    body = await _read_json(request, model, largest, turns)
                    # FastAPI only asks whether there is a body, and for the value of its JSON.
                    request._body, request._json = b"{}" if body else b"", body
                if writes:
                    await turns.enter_async_context(server.writing.turn(namespace, caller))
                return await respond(request)

        return handle if writes or model is not None else respond


async def _read_json(
    request: Request, model: type[_Model], max_bytes: int, turns: AsyncExitStack
) -> _Model | None:
    """Read a body of JSON, a large one in its turn, and validate it in a thread; None if empty.

    Raises:
        BadMediaError: It is not said to be JSON.
        ServiceError: As in `body_chunks` and `validate_json`.
    """
    # No page of another site can send this type unasked.
    sent_type = request.headers.get("content-type", "").partition(";")[0]
    if sent_type.strip().lower() != "application/json":
        raise BadMediaError("the body must be JSON: send  Content-Type: application/json")
    if int(request.headers.get("content-length", max_bytes)) > _LARGE:
        turn = request.app.state.server.bodies.turn(request.scope["caller"])
        await turns.enter_async_context(turn)
    body = bytearray()
    async for chunk in body_chunks(request, max_bytes):
        body += chunk
    return await run_in_threadpool(validate_json, body, model) if body else None


async def body_chunks(request: Request, max_bytes: int) -> AsyncIterator[bytes]:
    """Yield a body as it arrives, counted whatever the headers declare.

    Raises:
        ClientDisconnect: The client hung up before the end.
        TooLargeError: It is too long.
    """
    too_long = TooLargeError(f"the body has over {max_bytes} bytes: send fewer records at a time")
    if int(request.headers.get("content-length", 0)) > max_bytes:
        raise too_long
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_bytes:
            raise too_long
        yield chunk


def require_few(count: int, what: str) -> None:
    """Check how many records, copies or misses a request has.

    Raises:
        TooLargeError: There are more than `MOST_RECORDS`.
    """
    if count > MOST_RECORDS:
        raise TooLargeError(f"{count} {what} in one request: send at most {MOST_RECORDS} at a time")


def validate_json(
    text: bytes | bytearray, model: type[_Model], most_values: float = MOST_VALUES
) -> _Model:
    """Validate a JSON text; a long one holds the interpreter for some time, so not in a loop.

    Raises:
        InvalidJsonError: The text is not JSON, is nested more than 200 deep, or has a NUL in it.
        InvalidValueError: The value is not that of the model.
        TooLargeError: The text has more than `most_values` values.
    """
    # Counted by what separates values, before any of them takes memory.
    if text.count(b",") + text.count(b"[") + text.count(b"{") > most_values:
        raise TooLargeError(f"over {most_values} values in one text: send fewer at a time")
    # Postgres stores no NUL. Without the escaped backslashes, what reads as its escape is one.
    if b"\\u0000" in text and b"\\u0000" in text.replace(b"\\\\", b""):
        raise InvalidJsonError("there is a NUL character in a text: leave it out")
    try:
        value = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidJsonError(f"this is not JSON: {error}") from None
    try:
        return model.model_validate(value)
    except ValidationError as error:
        described = _describe(error)
    # Not above, where it would keep pydantic's error, which takes as much memory as all values.
    raise described


def _describe(error: ValidationError) -> InvalidValueError:
    count = error.error_count()
    if count > _MOST_COUNTED:
        message = f"has over {_MOST_COUNTED} errors: compare it with /v1/openapi.json"
        return InvalidValueError([{"loc": (), "msg": message}], 1)
    listed = error.errors(include_url=False, include_context=False, include_input=False)
    errors = [
        {
            "loc": [part if isinstance(part, int) else part[:100] for part in item["loc"]],
            "msg": item["msg"][:_LONGEST_MESSAGE],
        }
        for item in listed[:_MOST_ERRORS]
    ]
    return InvalidValueError(errors, count)
