"""Routes of the HTML pages."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from ..errors import NotFoundError
from ..pages import queries, rendering
from .common import Call, ContextDigest, CurrentCall, Namespace

__all__ = ["router"]

router = APIRouter(default_response_class=HTMLResponse, include_in_schema=False)

_PAGE_SIZE = 50


@router.get("/style.css")
def style() -> Response:
    """Return the stylesheet of the pages."""
    return Response(rendering.stylesheet(), media_type="text/css")


@router.get("/")
def front(call: CurrentCall) -> Response:
    """Redirect to the namespace with the most records."""
    namespaces = queries.list_namespaces(call.database, call.principal)
    return RedirectResponse(f"/pages/{namespaces[0] if namespaces else 'main'}")


@router.get("/pages/{namespace}")
def overview(namespace: Namespace, call: CurrentCall) -> Response:
    """Show the number of records by kernel and device."""
    matrix = queries.overview(call.database, call.principal, namespace)
    return _render("overview.html", call, namespace, matrix=matrix)


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
    pages = -(-shown.total // _PAGE_SIZE)
    return _render("kernel.html", call, namespace, shown=shown, page=page, pages=pages)


def _render(template: str, call: Call, namespace: str, **values: object) -> Response:
    namespaces = queries.list_namespaces(call.database, call.principal)
    html = rendering.render(
        template,
        namespace=namespace,
        namespaces=sorted({*namespaces, namespace}),
        principal=call.principal.name,
        **values,
    )
    return HTMLResponse(html, headers=rendering.HEADERS)
