"""JSON bodies, read strictly: no NaN, no infinity, no NUL, no text that is not UTF-8."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from pydantic_core import from_json
from starlette.responses import Response

from ..problems import ProblemError

__all__ = ["StrictRoute", "has_nul", "parse"]

_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


def parse(body: bytes) -> Any:
    """The value of a JSON text.

    Raises:
        ProblemError: 400.
    """
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise ProblemError(400, f"the body is not JSON: {error}") from None
    if has_nul(body):
        raise ProblemError(400, "the body has a NUL character in a text: leave it out")
    return value


def has_nul(body: bytes) -> bool:
    """Whether a JSON text holds the escape of a NUL, which Postgres cannot store."""
    return b"\\u0000" in body and _NUL.search(body) is not None


class _StrictRequest(Request):
    async def json(self) -> Any:
        return parse(await self.body())


class StrictRoute(APIRoute):
    """A route whose JSON body is parsed by `parse`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, behind a check of the body's type."""
        handler = super().get_route_handler()

        async def strict(request: Request) -> Response:
            if self.body_field is not None:
                _check_type(request)
            return await handler(_StrictRequest(request.scope, request.receive))

        return strict


def _check_type(request: Request) -> None:
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != "application/json":
        raise ProblemError(415, "the body must be JSON: send  Content-Type: application/json")
