"""Problem details (RFC 9457): the translation of errors to HTTP, each saying what to change."""

import logging
import sqlite3
from collections.abc import Callable, Coroutine, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from psycopg import Error as PsycopgError
from pydantic import BaseModel
from sqlalchemy.exc import DataError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from .errors import InvalidValueError, NotFoundError, ServiceError
from .storage.database import IS_DAMAGED, reason

_logger = logging.getLogger(__name__)

ANSWERED_ERRORS: tuple[type[Exception], ...] = (
    ServiceError,
    # A value is outside what can be stored.
    OverflowError,
    DataError,
    # The database does not answer, or is busy with others.
    OperationalError,
    InterfaceError,
    PoolTimeoutError,
    PsycopgError,
    sqlite3.Error,
)
"""Exceptions that are answers, wherever they are raised."""


class Refusal(BaseModel):
    """Problem details, as the OpenAPI describes them."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    errors: list[dict[str, Any]] | None = None


_CONTENT = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Refusal"}}}
RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"description": HTTPStatus(status).phrase, "content": _CONTENT}
    for status in (400, 401, 403, 404, 413, 415, 422, 429, 503)
}
"""OpenAPI of the refusals that every route may answer with."""


def problem(
    status: int,
    detail: str,
    *,
    errors: list[dict[str, Any]] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Build a response with problem details: what is wrong, and what the client should change.

    A malformed body has several `errors`.
    """
    title = HTTPStatus(status).phrase
    said = Refusal(title=title, status=status, detail=detail, errors=errors)
    content = said.model_dump_json(exclude_none=True)
    return Response(content, status, headers, media_type="application/problem+json")


def respond_to(error: Exception) -> Response:
    """Build the response to an expected error; of one of the database, also log it."""
    if isinstance(error, ServiceError):
        errors = getattr(error, "errors", None)
        return problem(error.status, str(error), errors=errors, headers=error.headers)
    if isinstance(error, (OverflowError, DataError)):
        return problem(
            422, "a number, a date or a text in the request is outside what can be stored"
        )
    said = reason(error.orig if isinstance(error, DBAPIError) else error)
    fields = {"error": str(error).partition("\n")[0]}
    if said == IS_DAMAGED:
        _logger.error(said, extra={"fields": fields})
        return problem(503, said, headers={"Retry-After": "60"})
    _logger.warning(said, extra={"fields": fields})
    return problem(503, f"{said}: try again", headers={"Retry-After": "1"})


async def _refuse_route(_: Request, error: HTTPException) -> Response:
    """Answer where there is no route for a path and a method."""
    said = f"{error.detail}: see /v1/openapi.json for what is accepted here"
    if error.status_code == 404:
        said = "there is nothing at this path; see /v1/openapi.json for those there are"
    return problem(error.status_code, said, headers=error.headers)


async def _refuse_values(_: Request, error: RequestValidationError) -> Response:
    """Answer where FastAPI finds a value of a path or a query wrong."""
    errors = [{"loc": item["loc"], "msg": item["msg"]} for item in error.errors()]
    described = InvalidValueError(errors, len(errors))
    if any(item["loc"][0] == "path" for item in errors):
        return respond_to(NotFoundError(f"no such resource: {described}"))
    return respond_to(described)


HANDLERS: dict[int | type[Exception], Callable[[Request, Any], Coroutine[Any, Any, Response]]] = {
    HTTPException: _refuse_route,
    RequestValidationError: _refuse_values,
}
"""Handlers of the errors that Starlette and FastAPI raise; the gate answers all others."""
