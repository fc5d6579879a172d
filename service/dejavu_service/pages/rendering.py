"""What all pages share: routers, lists as files, forms, templates, and errors as pages."""

from __future__ import annotations

import csv
import hashlib
import hmac
import io
import json
import re
import secrets
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from functools import partial
from heapq import nlargest
from http import HTTPStatus
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, urlencode

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from pydantic import BaseModel, Field
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dejavu_cache import __version__
from dejavu_cache.model.scenario import Context, Scenario
from dejavu_cache.system.notices import counted, printable_output

from ..errors import InvalidRequestError, NotFoundError
from ..problems import ProblemError
from ..server import NO_TOKENS, is_page
from ..services.access import ANYBODY, EVERYWHERE, NOBODY, READER, Principal, Role
from ..services.requests import Call, CurrentCall, media_type, read_body
from ..storage import summaries
from ..storage.database import Database
from ..storage.sql import to_datetime

__all__ = [
    "PAGE_SIZE",
    "AdminForm",
    "ErrorPagesMiddleware",
    "Form",
    "Wanted",
    "WriterForm",
    "list_namespaces",
    "page",
    "read_fields",
    "render",
    "render_page",
    "respond",
    "router",
    "stylesheet",
]

_METHODS = ["GET", "HEAD"]
_FOLDER = Path(__file__).parent / "templates"
_MOST_NAMES = 200
"""Namespaces that the field of each page suggests: those with the most records."""
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
"""Rows of a file, where the database cuts a list off."""
_MOST_BYTES, _MOST_FIELDS = 16 * 1024, 50
"""Limits of a form."""
_FORM = "application/x-www-form-urlencoded"
_OWN_KEY = secrets.token_bytes(32)
"""Key of the proofs where requests need no token, which only this machine's can do."""
_T = TypeVar("_T")
_View = TypeVar("_View", bound=Callable[..., Any])


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

    @property
    def limit(self) -> int:
        """Number of rows to ask the database for."""
        return _MOST_EXPORTED if self.export else PAGE_SIZE

    @property
    def offset(self) -> int:
        """Number of rows to leave out before."""
        return 0 if self.export else (self.page - 1) * PAGE_SIZE

    def paginate(self, rows: Sequence[_T], size: int = PAGE_SIZE) -> Sequence[_T]:
        """Return the rows of the page; none beyond the last one."""
        return rows[(self.page - 1) * size : self.page * size]


_Lists = Mapping[str, Iterable[Mapping[str, Any]]]


def _export(wanted: str, lists: _Lists) -> Response:
    """Return one of a page's lists as a file.

    Raises:
        NotFoundError: The page has no such list.
    """
    name, _, kind = wanted.partition(".")
    if name not in lists:
        raise NotFoundError(f"this page has no list {name!r}, but {', '.join(lists)}")
    rows = [dict(_flatten(row)) for row in lists[name]]
    headers = _HEADERS | {"Content-Disposition": f'attachment; filename="{wanted}"'}
    if kind == "json":
        text = json.dumps(rows, default=str, indent=1)
        return Response(text, media_type="application/json", headers=headers)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(dict.fromkeys(key for row in rows for key in row)))
    writer.writeheader()
    writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
    return Response(out.getvalue(), media_type="text/csv", headers=headers)


def _flatten(row: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield a row's values, with times as such, and parts of models under names of their own."""
    for name, value in row.items():
        if isinstance(value, Context):
            yield "kernel", value.kernel.name
            yield "gpu", value.environment.device.name
            yield "triton", value.environment.triton
        elif isinstance(value, Scenario):
            yield from ((f"scenario.{key}", item) for key, item in value.values.items())
        elif isinstance(value, float) and name.endswith(("_at", "_seen")):
            yield name, to_datetime(value)
        else:
            yield name, value


def _cell(value: Any) -> Any:
    """Return a value as spreadsheets take it: they compute a text that begins like a formula."""
    text = str(value)
    return f"'{text}" if not isinstance(value, (int, float)) and text[:1] in "=+-@" else value


class _PageRoute(APIRoute):
    """A route that makes few pages at a time, so that they leave programs memory and threads."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler behind the turns."""
        handler = super().get_route_handler()
        if not (self.methods or set()) <= set(_METHODS):
            return handler  # a form may arrive slowly

        async def handle_in_turn(request: Request) -> Response:
            who = request.scope.get("principal", NOBODY).name
            async with request.app.state.server.making_pages.turn(who):
                return await handler(request)

        return handle_in_turn


router = APIRouter(
    default_response_class=HTMLResponse, include_in_schema=False, route_class=_PageRoute
)
"""All pages, which are no part of the protocol."""


def page(path: str) -> Callable[[_View], _View]:
    """Return a decorator for the function that shows the page of a path."""
    return router.api_route(path, methods=_METHODS)


@page("/style.css")
def show_style() -> Response:
    """Return the stylesheet of the pages."""
    return Response(stylesheet(), media_type="text/css")


@page("/favicon.svg")
@page("/favicon.ico")
def show_icon() -> Response:
    """Return the icon of the pages."""
    headers = {"Cache-Control": "public, max-age=86400"}
    icon = (_FOLDER / "favicon.svg").read_text()
    return Response(icon, media_type="image/svg+xml", headers=headers)


def stylesheet() -> str:
    """Return the stylesheet of the pages."""
    return (_FOLDER / "style.css").read_text()


def list_namespaces(
    database: Database, principal: Principal, search: str = ""
) -> list[dict[str, Any]]:
    """List the namespaces that the principal may read, by name, whose name contains a text."""
    with database.read() as connection:
        rows = summaries.list_namespaces(connection)
    return [
        row
        for row in rows
        if principal.may("read", row["namespace"]) and search.lower() in row["namespace"].lower()
    ]


def render_page(
    template: str,
    call: Call,
    namespace: str,
    wanted: Wanted,
    lists: _Lists | None = None,
    **values: object,
) -> Response:
    """Render a page for the caller, who gets forms for what their role allows, or a list of it."""
    if wanted.export:
        return _export(wanted.export, lists or {})
    principal = call.principal
    largest = nlargest(
        _MOST_NAMES, list_namespaces(call.database, principal), key=itemgetter("records")
    )
    return respond(
        template,
        wanted=wanted,
        namespace=namespace,
        namespaces=sorted(row["namespace"] for row in largest),
        principal=principal.name,
        is_logged_in=principal not in (ANYBODY, READER),
        may_write=bool(namespace) and principal.may("write", namespace),
        may_admin=bool(namespace) and principal.may("admin", namespace),
        may_make_tokens=principal.may("admin", EVERYWHERE),
        proof=_form_proof(call),
        **values,
    )


def respond(template: str, status: int = 200, /, **values: object) -> Response:
    """Render a template to a response with the headers of all pages."""
    return HTMLResponse(render(template, **values), status, headers=_HEADERS)


def render(template: str, **values: object) -> str:
    """Render a template to HTML."""
    return _environment.get_template(template).render(values)


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


_environment = Environment(
    loader=FileSystemLoader(_FOLDER),
    autoescape=True,
    finalize=printable_output,
    trim_blocks=True,
    lstrip_blocks=True,
    # What a template names and a page lacks would show nothing, and nobody would miss it.
    undefined=StrictUndefined,
)
_environment.filters |= {
    "counted": partial(counted, grouped=True),
    "ms": format_milliseconds,
    "moment": _format_moment,
    "dotted": _break_after_dots,
    "duration": _format_duration,
    "with_query": _change_query,
}
_environment.globals |= {
    "version": __version__,
    # What pages without a namespace or a caller leave out.
    "namespace": "",
    "namespaces": [],
    "principal": "nobody",
    "is_logged_in": False,
    "may_make_tokens": False,
    "tab": "",
    "style": "",
}


class Form(NamedTuple):
    """The fields of a form, and the call that sent it."""

    call: Call
    fields: dict[str, str]

    def text(self, name: str, longest: int = 500) -> str:
        """Return a field, empty if it was left out.

        Raises:
            InvalidRequestError: The field is too long or has control characters.
        """
        value = self.fields.get(name, "").strip()
        if len(value) > longest or any(ord(character) < 32 for character in value):
            raise InvalidRequestError(f"{name}: at most {longest} characters, in one line")
        return value


def _form_proof(call: Call) -> str:
    """Return what the forms of a page carry, which only who knows the token can compute.

    It depends on the token alone, so that a form works on every replica.
    """
    key = call.credential.encode() or _OWN_KEY
    return hmac.new(key, b"dejavu-cache form", hashlib.sha256).hexdigest()


async def read_fields(request: Request) -> dict[str, str]:
    """Read the fields of a form.

    Raises:
        ProblemError: 415, it is no form; 413, it is too long.
        InvalidRequestError: It has too many fields.
    """
    if media_type(request) != _FORM:
        raise ProblemError(415, f"this takes what a form of the pages sends: {_FORM}")
    body = await read_body(request, _MOST_BYTES)
    try:
        pairs = parse_qsl(
            body.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS, errors="strict"
        )
    except ValueError:
        raise InvalidRequestError("this is no form of the pages: reload the page") from None
    return dict(pairs)


async def _read_form(role: Role, request: Request, call: CurrentCall) -> Form:
    """Read a form of who has a role in the path's namespace, or in all if the path has none.

    The role is checked before the form is read.
    """
    call.principal.require(role, request.path_params.get("namespace", EVERYWHERE))
    fields = await read_fields(request)
    if not hmac.compare_digest(fields.pop("proof", "").encode(), _form_proof(call).encode()):
        raise ProblemError(
            403, "this form is of another site or an earlier login: reload the page, try again"
        )
    return Form(call, fields)


async def _read_admin_form(request: Request, call: CurrentCall) -> Form:
    return await _read_form("admin", request, call)


async def _read_writer_form(request: Request, call: CurrentCall) -> Form:
    return await _read_form("write", request, call)


AdminForm = Annotated[Form, Depends(_read_admin_form)]
WriterForm = Annotated[Form, Depends(_read_writer_form)]


class ErrorPagesMiddleware:
    """ASGI middleware that renders problem details for browsers, and sends them to the login."""

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
        body = b""

        async def send_page(message: Message) -> None:
            nonlocal start, body
            if (b"content-type", b"application/problem+json") in message.get("headers", ()):
                start = message
                return
            if start is None:
                await send(message)
                return
            body += message.get("body", b"")
            if not message.get("more_body", False):
                await _error_page(scope, start, json.loads(body))(scope, receive, send)

        await self._app(scope, receive, send_page)


def _error_page(scope: Scope, start: Message, problem: dict[str, str]) -> Response:
    status = start["status"]
    # A token would not help where the server has none, and the page then says what does.
    if status == 401 and not problem["detail"].startswith(NO_TOKENS):
        where = scope["path"]
        if scope["query_string"]:
            where += f"?{scope['query_string'].decode('latin-1')}"
        query = {"next": where} if scope["method"] in _METHODS else {}
        if scope.get("credential"):
            query["why"] = "expired"
        return RedirectResponse(f"/login?{urlencode(query)}", 303)
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
    response.raw_headers += [
        (name, value) for name, value in start["headers"] if name.lower() not in dropped
    ]
    return response
