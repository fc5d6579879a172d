"""The pages: what is tuned, what is missing, what is slow."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from dejavu_cache import __version__

from ..pages import queries as rules
from ..problems import ProblemError
from .common import ContextDigest, Here, Namespace

__all__ = ["pages"]

pages = APIRouter(default_response_class=HTMLResponse, include_in_schema=False)

_TEMPLATES = Path(__file__).parents[1] / "pages" / "templates"
_PAGE = 50
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "private, no-store",
}

_templates = Environment(
    loader=FileSystemLoader(_TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True
)
_templates.filters["ms"] = lambda value: (
    f"{value:.3g} ms" if value >= 0.1 else f"{value * 1000:.3g} µs"
)
_templates.filters["day"] = lambda seconds: (
    f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M}"
)
# A long name breaks after its dots.
_templates.filters["dotted"] = lambda name: Markup("<wbr>").join(re.split(r"(?<=\.)", name))
_templates.globals["version"] = __version__


@pages.get("/style.css")
def style() -> Response:
    """How the pages look."""
    return Response((_TEMPLATES / "style.css").read_text(), media_type="text/css")


@pages.get("/")
def front(here: Here) -> Response:
    """The namespace with the most records."""
    found = rules.namespaces(here.server.database, here.who)
    return RedirectResponse(f"/pages/{found[0] if found else 'main'}")


@pages.get("/pages/{namespace}")
def overview(namespace: Namespace, here: Here) -> Response:
    """Kernels by devices."""
    shown = rules.overview(here.server.database, here.who, namespace)
    return _page("overview.html", here, namespace, matrix=shown)


@pages.get("/pages/{namespace}/misses")
def worklist(namespace: Namespace, here: Here) -> Response:
    """What was wanted and not there."""
    return _page(
        "misses.html",
        here,
        namespace,
        wanted=rules.worklist(here.server.database, here.who, namespace),
    )


@pages.get("/pages/{namespace}/contexts/{context}")
def kernel(
    namespace: Namespace,
    context: ContextDigest,
    here: Here,
    page: Annotated[int, Query(ge=1, le=100_000)] = 1,
) -> Response:
    """One kernel on one device: scenarios, winners, timings, near-ties and pins."""
    found = rules.kernel(
        here.server.database, here.who, namespace, context, (page - 1) * _PAGE, _PAGE
    )
    if found is None:
        raise ProblemError(404, "nothing is known of this context here")
    return _page(
        "kernel.html", here, namespace, shown=found, page=page, pages=-(-found.total // _PAGE)
    )


def _page(template: str, here: Here, namespace: str, **values: Any) -> Response:
    others = rules.namespaces(here.server.database, here.who)
    values |= {
        "namespace": namespace,
        "namespaces": sorted({*others, namespace}),
        "who": here.who.name,
    }
    return HTMLResponse(_templates.get_template(template).render(values), headers=_HEADERS)
