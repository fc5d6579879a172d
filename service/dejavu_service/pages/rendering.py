"""What all pages share: turns, lists as files, templates, and errors as pages."""

import csv
import io
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

from fastapi import APIRouter, Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from pydantic import BaseModel, Field
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dejavu_cache import __version__
from dejavu_cache.model.scenario import Context, Scenario
from dejavu_cache.system.notices import counted, printable_output

from ..errors import NotFoundError
from ..server import is_page
from ..services.access import ANYBODY, READER
from ..services.requests import Call, TurnRoute
from ..storage.sql import to_datetime

FOLDER = Path(__file__).parent / "templates"
PAGE_SIZE = 50
"""Rows of a table on one page."""
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    # Without a referrer, browsers would call the origin of the pages' own forms `null`.
    "Referrer-Policy": "same-origin",
    "Cache-Control": "private, no-store",
}
_MOST_EXPORTED = 10_000
"""Rows of a list that a file has at most."""


class Wanted(BaseModel):
    """What the query of a page's address asks for.

    Attributes:
        page: The page of a list, from 1.
        export: The name of a list and `csv` or `json`, to get all of it as a file.
    """

    page: int = Field(default=1, ge=1, le=100_000)
    export: str = Field(default="", pattern=r"^([a-z]{1,20}\.(csv|json))?$")

    @property
    def query(self) -> str:
        """Query of the first page of the same list, for links to other pages."""
        return urlencode(self.model_dump(exclude={"page", "export"}, exclude_defaults=True))

    def rows(self, size: int = PAGE_SIZE) -> slice:
        """Return which rows of a list are wanted: those of the page, or all for a file."""
        if self.export:
            return slice(0, _MOST_EXPORTED)
        return slice((self.page - 1) * size, self.page * size)


router = APIRouter(
    default_response_class=HTMLResponse, include_in_schema=False, route_class=TurnRoute
)
"""All pages, which are no part of the protocol."""


def render_page(
    template: str,
    call: Call,
    namespace: str,
    wanted: Wanted,
    lists: Mapping[str, Iterable[Any] | None],
    **values: object,
) -> Response:
    """Render a page for the caller, or return one of its lists as a file.

    The lists are named as in the template and in `wanted.export`; the namespace may be empty.

    Raises:
        NotFoundError: The page has no such list.
    """
    if wanted.export:
        listed = lists.get(wanted.export.partition(".")[0])
        if listed is None:
            raise NotFoundError(f"this page has no list for {wanted.export}")
        return _export(wanted.export, [dict(_flatten(row)) for row in listed])
    principal = call.principal
    return respond(
        template,
        wanted=wanted,
        namespace=namespace,
        principal=principal.name,
        is_logged_in=principal not in (ANYBODY, READER),
        **lists,
        **values,
    )


def _export(name: str, rows: list[dict[str, Any]]) -> Response:
    headers = _HEADERS | {"Content-Disposition": f'attachment; filename="{name}"'}
    if name.endswith("json"):
        text = json.dumps(rows, default=str, indent=1)
        return Response(text, media_type="application/json", headers=headers)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(dict.fromkeys(column for row in rows for column in row)))
    writer.writeheader()
    writer.writerows({column: _cell(value) for column, value in row.items()} for row in rows)
    return Response(out.getvalue(), media_type="text/csv", headers=headers)


def _flatten(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a row by the names of columns, those of its parts as `scenario.M`."""
    if isinstance(value, Context):
        name, machine = "", value.environment
        value = {"kernel": value.kernel.name, "gpu": machine.device.name, "triton": machine.triton}
    elif isinstance(value, Scenario):
        value = value.values
    elif isinstance(value, BaseModel):
        value = value.model_dump()
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _flatten(part, f"{name}.{key}" if name else key)
    elif isinstance(value, float) and name.endswith(("_at", "_seen")):
        yield name, to_datetime(value)
    else:
        yield name, value


def _cell(value: Any) -> Any:
    """Return a value as spreadsheets take it: they compute a text that begins like a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in "=+-@" else value


def respond(template: str, status: int = 200, /, **values: object) -> Response:
    """Render a template to a response with the headers of all pages."""
    return HTMLResponse(render(template, **values), status, headers=_HEADERS)


def render(template: str, **values: object) -> str:
    """Render a template to HTML."""
    return environment.get_template(template).render(values)


def format_milliseconds(value: float) -> str:
    """Return a time with its unit, to three digits."""
    if value >= 999.5:  # rounded to three digits, it is a second
        amount, unit = value / 1000, "s"
    else:
        amount, unit = (value, "ms") if value >= 0.9995 else (value * 1000, "µs")
    digits = f"{amount:#.3g}".rstrip(".") if amount < 999.5 else f"{amount:,.0f}"
    return f"{digits} {unit}"


def _format_moment(moment: datetime | float) -> str:
    """Return a time, also one in seconds since 1970, to the minute."""
    if not isinstance(moment, datetime):
        moment = datetime.fromtimestamp(moment, timezone.utc)
    return f"{moment.astimezone(timezone.utc):%Y-%m-%d %H:%M} UTC"


def _format_duration(seconds: float) -> str:
    if seconds <= 0:
        return "\N{EN DASH}"
    if seconds < 1:
        return "< 1 s"
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.0f} s"


def _change_query(query: str, **changes: object) -> str:
    """Return a query string with parameters replaced, or removed where the value is None."""
    values = {name: value for name, value in parse_qsl(query) if name not in changes}
    added = {name: str(value) for name, value in changes.items() if value is not None}
    return urlencode({**values, **added})


def _break_after_dots(name: str) -> Markup:
    return Markup("<wbr>").join(re.split(r"(?<=\.)", name))


environment = Environment(
    loader=FileSystemLoader(FOLDER),
    autoescape=True,
    finalize=printable_output,
    trim_blocks=True,
    lstrip_blocks=True,
    # What a template names and a page lacks would show nothing, and nobody would miss it.
    undefined=StrictUndefined,
)
environment.filters |= {
    "counted": partial(counted, grouped=True),
    "ms": format_milliseconds,
    "moment": _format_moment,
    "dotted": _break_after_dots,
    "quoted": shlex.quote,
    "duration": _format_duration,
    "with_query": _change_query,
}
environment.globals |= {
    "version": __version__,
    # What pages without a namespace or a caller leave out.
    "namespace": "",
    "principal": "nobody",
    "is_logged_in": False,
    "is_copy": False,
    "tab": "",
    "style": "",
}


class ErrorPagesMiddleware:
    """ASGI middleware that renders problem details for browsers, and asks them for a token."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap an app."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and replace problem details in the answer."""
        is_shown = scope["type"] == "http" and is_page(scope)
        if not is_shown or "text/html" not in Headers(scope=scope).get("accept", ""):
            await self._app(scope, receive, send)
            return
        start: Message | None = None

        async def send_page(message: Message) -> None:
            nonlocal start
            if (b"content-type", b"application/problem+json") in message.get("headers", ()):
                start = message
            elif start is None:
                await send(message)
            else:
                await _error_page(scope, start, json.loads(message["body"]))(scope, receive, send)

        await self._app(scope, receive, send_page)


def _error_page(scope: Scope, start: Message, problem: dict[str, str]) -> Response:
    status = start["status"]
    if status == 401:
        where = f"{scope['path']}?{scope['query_string'].decode('latin-1')}"
        wrong = problem["detail"] if scope.get("credential") else ""
        return respond("login.html", 401, where=where, wrong=wrong)
    response = respond(
        "error.html",
        status,
        status=status,
        title=HTTPStatus(status).phrase,
        detail=problem["detail"],
        principal=getattr(scope.get("principal"), "name", "nobody"),
        is_logged_in=bool(scope.get("credential")),
    )
    dropped = (b"content-type", b"content-length")
    response.raw_headers += [pair for pair in start["headers"] if pair[0].lower() not in dropped]
    return response
