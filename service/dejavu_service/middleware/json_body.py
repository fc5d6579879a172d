"""Strict JSON bodies: no NaN, no infinity, no NUL, and nothing that is not UTF-8."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from pydantic_core import from_json
from starlette.responses import Response

from ..problems import ProblemError
from ..services.json_text import has_nul

__all__ = ["StrictRoute", "parse_json"]


def parse_json(body: bytes) -> Any:
    """Parse a JSON body.

    Raises:
        ProblemError: 400, the body is not JSON or has a NUL character.
    """
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise ProblemError(400, f"the body is not JSON: {error}") from None
    if has_nul(body):
        raise ProblemError(400, "the body has a NUL character in a text: leave it out")
    return value


class _StrictRequest(Request):
    async def json(self) -> Any:
        return parse_json(await self.body())


class StrictRoute(APIRoute):
    """A route that requires `application/json` and parses its body with `parse_json`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler behind a check of the body's media type."""
        handler = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            if self.body_field is not None:
                _check_media_type(request)
            return await handler(_StrictRequest(request.scope, request.receive))

        return handle_strictly


def _check_media_type(request: Request) -> None:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise ProblemError(415, "the body must be JSON: send  Content-Type: application/json")
