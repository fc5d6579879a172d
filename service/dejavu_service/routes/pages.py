"""Routes of the HTML pages."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from ..errors import NotFoundError
from ..pages import queries, rendering
from ..pages.overview import OverviewFilter, SortKey, overview
from .common import Call, ContextDigest, CurrentCall, Namespace

__all__ = ["router"]

router = APIRouter(default_response_class=HTMLResponse, include_in_schema=False)

_PAGE_SIZE = 50


_Text = Annotated[str, Query(max_length=500)]


@router.get("/style.css")
def style() -> Response:
    """Return the stylesheet of the pages."""
    return Response(rendering.stylesheet(), media_type="text/css")


@router.get("/favicon.svg")
@router.get("/favicon.ico")
def icon() -> Response:
    """Return the icon of the pages."""
    headers = {"Cache-Control": "public, max-age=86400"}
    return Response(rendering.icon(), media_type="image/svg+xml", headers=headers)


@router.get("/")
def front(call: CurrentCall) -> Response:
    """Redirect to the namespace with the most records."""
    rows = queries.list_namespaces(call.database, call.principal)
    largest = max(rows, key=lambda row: row.records).name if rows else "main"
    return RedirectResponse(f"/pages/{largest}")


@router.get("/namespaces")
def namespaces(call: CurrentCall, q: _Text = "", open: _Text = "") -> Response:  # noqa: A002
    """List the namespaces whose name contains a text, or go to one."""
    listed = queries.list_namespaces(call.database, call.principal, open or q)
    if open in {row.name for row in listed}:
        return RedirectResponse(f"/pages/{open}", 303)
    return _render("namespaces.html", call, "", listed=listed, search=open or q)


def _filter(
    q: _Text = "",
    device: _Text = "",
    triton: _Text = "",
    days: Annotated[str, Query(pattern=r"^\d{0,5}$")] = "",
    sort: SortKey = "kernel",
    page: Annotated[int, Query(ge=1, le=100_000)] = 1,
) -> OverviewFilter:
    return OverviewFilter(q, device, triton, int(days) if days else None, sort, page)


@router.get("/pages/{namespace}")
def show_overview(
    namespace: Namespace, call: CurrentCall, wanted: Annotated[OverviewFilter, Depends(_filter)]
) -> Response:
    """Show what is tuned of every kernel, what that cost, and what reuse saved."""
    seen = overview(call.database, call.principal, namespace, wanted)
    query = urlencode(
        {
            "q": wanted.search,
            "device": wanted.device,
            "triton": wanted.triton,
            "days": wanted.days or "",
            "sort": wanted.sort,
        }
    )
    return _render("overview.html", call, namespace, seen=seen, wanted=wanted, query=query)


@router.get("/pages/{namespace}/misses")
def worklist(namespace: Namespace, call: CurrentCall) -> Response:
    """Show the scenarios that were looked up and have no record."""
    misses = queries.worklist(call.database, call.principal, namespace)
    return _render("misses.html", call, namespace, misses=misses)


@router.get("/pages/{namespace}/contexts/{context}")
def kernel(
    namespace: Namespace,
    context: ContextDigest,
    call: CurrentCall,
    page: Annotated[int, Query(ge=1, le=100_000)] = 1,
) -> Response:
    """Show a kernel on a device: scenarios, winners, timings, near-ties and pins."""
    start = (page - 1) * _PAGE_SIZE
    shown = queries.kernel(call.database, call.principal, namespace, context, start, _PAGE_SIZE)
    if shown is None:
        raise NotFoundError("nothing is known of this context here")
    call.server.reader.used.add((namespace, context))
    pages = -(-shown.total // _PAGE_SIZE)
    return _render("kernel.html", call, namespace, shown=shown, page=page, pages=pages)


def _render(template: str, call: Call, namespace: str, **values: object) -> Response:
    rows = queries.list_namespaces(call.database, call.principal)
    html = rendering.render(
        template,
        namespace=namespace,
        namespaces=[row.name for row in rows],
        principal=call.principal.name,
        **values,
    )
    return HTMLResponse(html, headers=rendering.HEADERS)
