"""Refusals as `application/problem+json` (RFC 9457): each says what to change."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from psycopg import Error as PsycopgError
from pydantic import BaseModel
from sqlalchemy.exc import DataError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.exceptions import HTTPException
from starlette.responses import Response

__all__ = ["AWAY", "RESPONSES", "ProblemError", "Refusal", "away", "install_handlers", "problem"]

_logger = logging.getLogger(__name__)

_SHOWN = 20
"""Errors of one body that are listed."""


AWAY: tuple[type[Exception], ...] = (
    OperationalError,
    InterfaceError,
    PoolTimeoutError,
    PsycopgError,
    sqlite3.Error,
)
"""What is raised when the database does not answer."""


class Refusal(BaseModel):
    """What a refusal says."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    errors: list[dict[str, Any]] | None = None


class ProblemError(HTTPException):
    """A refusal with its status and what the caller should change."""


_CONTENT = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Refusal"}}}
_WHEN = {
    400: "Not JSON",
    401: "No token, or one that is wrong, expired or revoked",
    403: "The token may not do this",
    404: "Nothing there",
    413: "Too large",
    415: "Not application/json",
    422: "Understood, and wrong",
    429: "Too many requests",
    503: "The database is away",
}
RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"description": text, "content": _CONTENT} for status, text in _WHEN.items()
}
"""For every route's OpenAPI."""


def problem(
    status: int,
    detail: str,
    *,
    errors: Iterable[Mapping[str, Any]] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """The response that refuses."""
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
    }
    if errors is not None:
        body["errors"] = list(errors)
    content = json.dumps(body, ensure_ascii=True)
    return Response(content, status, headers, media_type="application/problem+json")


def install_handlers(app: FastAPI) -> None:
    """Makes every exception that is the caller's doing, or the database's absence, a problem."""
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(OverflowError, _out_of_range)
    app.add_exception_handler(DataError, _out_of_range)
    for error in AWAY:
        app.add_exception_handler(error, _away)


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail = error.detail
    if detail == HTTPStatus(error.status_code).phrase:
        detail = {
            404: "there is nothing at this path; see /v1/openapi.json for those there are"
        }.get(error.status_code, f"{detail}: see /v1/openapi.json for what is accepted here")
    return problem(error.status_code, detail, headers=error.headers)


async def _malformed(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    found = [{"loc": list(each["loc"]), "msg": each["msg"]} for each in error.errors()]
    if any(each["loc"][0] == "path" for each in found):
        return problem(
            404,
            "no such resource: " + "; ".join(f"{each['loc'][-1]}: {each['msg']}" for each in found),
        )
    first = f"{'.'.join(map(str, found[0]['loc']))}: {found[0]['msg']}"
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    return problem(422, first + more, errors=found[:_SHOWN])


async def _out_of_range(_: Request, error: Exception) -> Response:
    return problem(422, "a number, a date or a text in the request is outside what can be stored")


async def _away(_: Request, error: Exception) -> Response:
    return away(error)


def away(error: Exception) -> Response:
    """The response while the database does not answer."""
    _logger.warning(
        "the database does not answer", extra={"fields": {"error": str(error).partition("\n")[0]}}
    )
    return problem(503, "the database does not answer: try again", headers={"Retry-After": "1"})
