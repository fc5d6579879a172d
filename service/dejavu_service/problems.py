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
from psycopg.errors import (
    DeadlockDetected,
    DiskFull,
    LockNotAvailable,
    ReadOnlySqlTransaction,
    SerializationFailure,
)
from pydantic import BaseModel
from sqlalchemy.exc import DataError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from .errors import ServiceError
from .storage.database import FILE_IS_GONE, UNPREPARED, is_damage

__all__ = [
    "ANSWERED_ERRORS",
    "IS_DAMAGED",
    "RESPONSES",
    "ProblemError",
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


class ProblemError(HTTPException):
    """A refusal that is about HTTP itself: authentication, rate, size or form of a request."""


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


IS_DAMAGED = "the database is damaged: stop the server, restore the backup, and start it again"
"""Said of a database whose data cannot be read back, which no retry mends."""

_REASONS: dict[str, tuple[str, tuple[type[PsycopgError], ...]]] = {
    "is busy with others who write": (
        "is locked",
        (DeadlockDetected, LockNotAvailable, SerializationFailure),
    ),
    "may only be read now": ("readonly", (ReadOnlySqlTransaction,)),
    "has no room left on its disk": ("is full", (DiskFull,)),
    "lacks tables that this version needs, or rights of the server's role to them": (
        "no such table",
        UNPREPARED,
    ),
    "was moved, replaced or deleted while the server ran, which must be restarted": (
        FILE_IS_GONE,
        (),
    ),
}
"""Reasons for which a database refuses, with a part of SQLite's message and Postgres' errors."""


def _reason(cause: BaseException | None) -> str:
    for reason, (message, errors) in _REASONS.items():
        is_sqlite = isinstance(cause, sqlite3.OperationalError)
        if isinstance(cause, errors) or (is_sqlite and message in str(cause)):
            return reason
    return "does not answer"


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
        seconds = {429: "10", 503: "2"}.get(error.status)
        headers = {"Retry-After": seconds} if seconds else None
        errors = getattr(error, "errors", None)
        return problem(error.status, str(error), errors=errors, headers=headers)
    if isinstance(error, RequestValidationError):
        return _describe_errors(error)
    if isinstance(error, (OverflowError, DataError)):
        return problem(
            422, "a number, a date or a text in the request is outside what can be stored"
        )
    cause = error.orig if isinstance(error, DBAPIError) else error
    fields = {"error": str(error).partition("\n")[0]}
    if is_damage(cause):
        _logger.error(IS_DAMAGED, extra={"fields": fields})
        return problem(503, IS_DAMAGED, headers={"Retry-After": "60"})
    said = f"the database {_reason(cause)}"
    _logger.warning(said, extra={"fields": fields})
    return problem(503, f"{said}: try again", headers={"Retry-After": "1"})


def _detail(error: HTTPException) -> str:
    # Starlette's own exceptions have the status' name for a detail.
    if error.detail != HTTPStatus(error.status_code).phrase:
        return error.detail
    if error.status_code == 404:
        return "there is nothing at this path; see /v1/openapi.json for those there are"
    return f"{error.detail}: see /v1/openapi.json for what is accepted here"


def _describe_errors(error: RequestValidationError) -> Response:
    errors = [{"loc": list(item["loc"]), "msg": item["msg"]} for item in error.errors()]
    if any(item["loc"][0] == "path" for item in errors):
        parts = "; ".join(f"{item['loc'][-1]}: {item['msg']}" for item in errors)
        return problem(404, f"no such resource: {parts}")
    first = f"{'.'.join(map(str, errors[0]['loc']))}: {errors[0]['msg']}"
    more = f", and {len(errors) - 1} more" if len(errors) > 1 else ""
    return problem(422, first + more, errors=errors)
