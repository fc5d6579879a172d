"""Routes of the HTML pages."""

from __future__ import annotations

import re
from datetime import date
from functools import partial
from typing import Annotated
from urllib.parse import urlencode

from fastapi import Depends, Query, Response
from fastapi.responses import RedirectResponse

from ..errors import InvalidRequestError
from ..pages import rendering
from ..pages.activity import activity
from ..pages.compare import ContextSide, compare_contexts, compare_with_namespace
from ..pages.context import ContextFilter, context_page
from ..pages.kernel import KernelFilter, kernel_across
from ..pages.namespaces import list_namespaces
from ..pages.overview import OverviewFilter, SortKey, overview
from ..pages.paging import count_pages
from ..pages.scenario import scenario_page
from ..pages.worklist import WorklistFilter, worklist
from ..services.access import NAMESPACE
from .common import ContextDigest, CurrentCall, Namespace, ScenarioDigest
from .page_response import PAGE_METHODS, pages_router, render_page

__all__ = ["router"]

router = pages_router()
_page = partial(router.api_route, methods=PAGE_METHODS)
_Text = Annotated[str, Query(max_length=500)]
_Page = Annotated[int, Query(ge=1, le=100_000)]
_MOST_CONFIGS = 30
"""Configs whose costs are listed."""
_MOST_NAMESPACES = 1000
"""Namespaces that are listed: each pull request may have one."""


@_page("/style.css")
def style() -> Response:
    """Return the stylesheet of the pages."""
    return Response(rendering.stylesheet(), media_type="text/css")


@_page("/favicon.svg")
@_page("/favicon.ico")
def icon() -> Response:
    """Return the icon of the pages."""
    headers = {"Cache-Control": "public, max-age=86400"}
    return Response(rendering.icon(), media_type="image/svg+xml", headers=headers)


@_page("/")
def front(call: CurrentCall) -> Response:
    """Redirect to the namespace with the most records."""
    rows = list_namespaces(call.database, call.principal)
    largest = max(rows, key=lambda row: row.records).name if rows else "main"
    return RedirectResponse(f"/pages/{largest}")


@_page("/namespaces")
def namespaces(call: CurrentCall, q: _Text = "", open: _Text = "") -> Response:  # noqa: A002
    """List the namespaces whose name contains a text, or go to one."""
    listed = list_namespaces(call.database, call.principal, open or q)
    if open in {row.name for row in listed}:
        return RedirectResponse(f"/pages/{open}", 303)
    shown = listed[:_MOST_NAMESPACES]
    return render_page(
        "namespaces.html", call, "", listed=shown, total=len(listed), search=open or q
    )


def _filter(
    q: _Text = "",
    device: _Text = "",
    triton: _Text = "",
    days: Annotated[str, Query(pattern=r"^\d{0,5}$")] = "",
    sort: SortKey = "kernel",
    page: _Page = 1,
) -> OverviewFilter:
    return OverviewFilter(q, device, triton, int(days) if days else None, sort, page)


@_page("/pages/{namespace}")
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
    return render_page("overview.html", call, namespace, seen=seen, wanted=wanted, query=query)


@_page("/pages/{namespace}/misses")
def show_worklist(
    namespace: Namespace, call: CurrentCall, kernel: _Text = "", device: _Text = "", page: _Page = 1
) -> Response:
    """Show the scenarios that were looked up and have no record, and who is tuning them."""
    wanted = WorklistFilter(kernel, device, page)
    seen = worklist(call.database, call.principal, namespace, wanted)
    query = urlencode({"kernel": kernel, "device": device})
    pages = count_pages(seen.total)
    return render_page(
        "misses.html", call, namespace, seen=seen, wanted=wanted, query=query, pages=pages
    )


@_page("/pages/{namespace}/activity")
def show_activity(
    namespace: Namespace,
    call: CurrentCall,
    days: Annotated[int, Query(ge=1, le=3650)] = 7,
    actor: Annotated[str, Query(max_length=300)] = "",
    before: Annotated[int | None, Query(ge=1, le=2**62)] = None,
) -> Response:
    """Show what people changed, and what was tuned."""
    seen = activity(call.database, call.principal, namespace, days, actor, before)
    query = urlencode({"days": days, "actor": actor})
    return render_page(
        "activity.html", call, namespace, seen=seen, days=days, actor=actor, query=query
    )


@_page("/pages/{namespace}/kernel")
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
    pages = count_pages(seen.total)
    return render_page(
        "kernel.html", call, namespace, seen=seen, wanted=wanted, query=query, pages=pages
    )


@_page("/pages/{namespace}/contexts/{context}")
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
    call.server.reader.note_use((namespace, context))
    return render_page(
        "context.html",
        call,
        namespace,
        seen=seen,
        wanted=wanted,
        query=urlencode({"sort": sort, "reference": reference}),
        pages=count_pages(seen.total),
        most=_MOST_CONFIGS,
    )


@_page("/pages/{namespace}/contexts/{context}/scenarios/{scenario}")
def show_scenario(
    namespace: Namespace, context: ContextDigest, scenario: ScenarioDigest, call: CurrentCall
) -> Response:
    """Show why a scenario's config runs, all its measurements, neighbours and history."""
    seen = scenario_page(call.database, call.principal, namespace, context, scenario)
    call.server.reader.note_use((namespace, context))
    return render_page("scenario.html", call, namespace, seen=seen)


@_page("/pages/{namespace}/compare")
def show_comparison(
    namespace: Namespace, call: CurrentCall, to: _Text = "", kernel: _Text = "", page: _Page = 1
) -> Response:
    """Compare two namespaces; for an admin of both, the preview of a promotion."""
    call.principal.require("read", namespace)
    readable = {row.name for row in list_namespaces(call.database, call.principal)}
    other = to if re.fullmatch(NAMESPACE, to) else ""
    seen = None
    if other and other != namespace:
        seen = compare_with_namespace(call.database, call.principal, namespace, other, kernel, page)
    return render_page(
        "compare.html",
        call,
        namespace,
        seen=seen,
        to=other,
        kernel=kernel,
        page=page,
        query=urlencode({"to": other, "kernel": kernel}),
        others=sorted(readable - {namespace}),
        may_promote=bool(other) and call.principal.may("admin", other),
    )


@_page("/pages/{namespace}/contexts/{context}/compare")
def show_context_comparison(
    namespace: Namespace,
    context: ContextDigest,
    call: CurrentCall,
    other: Annotated[str, Query(pattern=r"^[0-9a-f]{0,24}$")] = "",
    to: _Text = "",
    until: Annotated[str, Query(pattern=r"^(\d{4}-\d{2}-\d{2})?$")] = "",
    page: _Page = 1,
) -> Response:
    """Compare a context with another GPU or Triton, namespace or date."""
    theirs = ContextSide(
        to if re.fullmatch(NAMESPACE, to) else namespace, other or context, _date(until)
    )
    ours = ContextSide(namespace, context)
    seen = compare_contexts(call.database, call.principal, ours, theirs, page)
    return render_page(
        "compare_context.html",
        call,
        namespace,
        seen=seen,
        ours=ours,
        theirs=theirs,
        page=page,
        pages=count_pages(seen.total),
        query=urlencode({"other": other, "to": to, "until": until}),
    )


def _date(text: str) -> date | None:
    try:
        return date.fromisoformat(text) if text else None
    except ValueError:
        raise InvalidRequestError(f"until: {text} is no day: write it as 2026-11-30") from None
