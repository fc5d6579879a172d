"""Problem details (RFC 9457): the translation of errors to HTTP, each saying what to change."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from psycopg import Error as PsycopgError
from pydantic import BaseModel
from sqlalchemy.exc import DataError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from .errors import InvalidValueError, NotFoundError, ServiceError
from .storage.database import IS_DAMAGED, reason

__all__ = [
    "ANSWERED_ERRORS",
    "RESPONSES",
    "Refusal",
    "install_handlers",
    "problem",
    "respond_to",
]

_logger = logging.getLogger(__name__)

ANSWERED_ERRORS: tuple[type[Exception], ...] = (
    HTTPException,
    ServiceError,
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
    """Build a response with problem details.

    Args:
        status: The HTTP status.
        detail: What is wrong, and what the client should change.
        errors: The single errors of a malformed body.
        headers: Headers of the response.
    """
    title = HTTPStatus(status).phrase
    said = Refusal(title=title, status=status, detail=detail, errors=errors)
    content = json.dumps(said.model_dump(exclude_none=True))
    return Response(content, status, headers, media_type="application/problem+json")


def install_handlers(app: FastAPI) -> None:
    """Answer all expected errors with problem details."""

    async def handle(_: Request, error: Exception) -> Response:
        return respond_to(error)

    for error in (*ANSWERED_ERRORS, RequestValidationError, OverflowError, DataError):
        app.add_exception_handler(error, handle)


def respond_to(error: Exception) -> Response:
    """Build the response to an expected error; of one of the database, also log it."""
    if isinstance(error, HTTPException):
        return problem(error.status_code, _detail(error), headers=error.headers)
    if isinstance(error, ServiceError):
        errors = getattr(error, "errors", None)
        return problem(error.status, str(error), errors=errors, headers=error.headers)
    if isinstance(error, RequestValidationError):
        return respond_to(_describe(error))
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


def _detail(error: HTTPException) -> str:
    # Starlette's own exceptions have the status' name for a detail.
    if error.detail != HTTPStatus(error.status_code).phrase:
        return error.detail
    if error.status_code == 404:
        return "there is nothing at this path; see /v1/openapi.json for those there are"
    return f"{error.detail}: see /v1/openapi.json for what is accepted here"


def _describe(error: RequestValidationError) -> ServiceError:
    errors = [{"loc": item["loc"], "msg": item["msg"]} for item in error.errors()]
    described = InvalidValueError(errors, len(errors))
    if any(item["loc"][0] == "path" for item in errors):
        return NotFoundError(f"no such resource: {described}")
    return described
