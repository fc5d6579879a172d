"""Routes of the HTML pages."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from ..pages import queries, rendering
from ..pages.context import PAGE_SIZE, ContextFilter, context_page
from ..pages.kernel import KernelFilter, kernel_across
from ..pages.overview import OverviewFilter, SortKey, overview
from ..pages.scenario import scenario_page
from .common import Call, ContextDigest, CurrentCall, Namespace, ScenarioDigest

__all__ = ["router"]

router = APIRouter(default_response_class=HTMLResponse, include_in_schema=False)


_Text = Annotated[str, Query(max_length=500)]
_Page = Annotated[int, Query(ge=1, le=100_000)]
_MOST_CONFIGS = 30
"""Configs whose costs are listed."""


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
    page: _Page = 1,
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


@router.get("/pages/{namespace}/kernel")
def show_kernel(
    namespace: Namespace,
    call: CurrentCall,
    name: Annotated[str, Query(min_length=1, max_length=500)],
    source: Annotated[str, Query(pattern=r"^[0-9a-f]{0,64}$")] = "",
    sort: _Text = "",
    page: _Page = 1,
) -> Response:
    """Show a kernel on all GPUs: which config readers get where."""
    wanted = KernelFilter(source, sort, page)
    seen = kernel_across(call.database, call.principal, namespace, name, wanted)
    query = urlencode({"name": name, "source": source, "sort": sort})
    pages = -(-seen.total // PAGE_SIZE)
    return _render(
        "kernel.html", call, namespace, seen=seen, wanted=wanted, query=query, pages=pages
    )


@router.get("/pages/{namespace}/contexts/{context}")
def show_context(
    namespace: Namespace,
    context: ContextDigest,
    call: CurrentCall,
    sort: _Text = "",
    page: _Page = 1,
    reference: Annotated[str, Query(pattern=r"^[0-9a-f]{0,24}$")] = "",
) -> Response:
    """Show a kernel on a GPU: its scenarios, a map of the winners, and the costs of its configs."""
    wanted = ContextFilter(sort, page, reference)
    seen = context_page(call.database, call.principal, namespace, context, wanted)
    call.server.reader.used.add((namespace, context))
    return _render(
        "context.html",
        call,
        namespace,
        seen=seen,
        wanted=wanted,
        query=urlencode({"sort": sort, "reference": reference}),
        pages=-(-seen.total // PAGE_SIZE),
        most=_MOST_CONFIGS,
    )


@router.get("/pages/{namespace}/contexts/{context}/scenarios/{scenario}")
def show_scenario(
    namespace: Namespace, context: ContextDigest, scenario: ScenarioDigest, call: CurrentCall
) -> Response:
    """Show why a scenario's config runs, all its measurements, neighbours and history."""
    seen = scenario_page(call.database, call.principal, namespace, context, scenario)
    call.server.reader.used.add((namespace, context))
    return _render("scenario.html", call, namespace, seen=seen)


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
