"""Templates of the pages, and the headers that all pages are sent with."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from pathlib import Path

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from dejavu_cache import __version__

__all__ = ["HEADERS", "render", "stylesheet"]

_FOLDER = Path(__file__).parent / "templates"

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "private, no-store",
}


def render(template: str, **values: object) -> str:
    """Render a template to HTML."""
    return _environment.get_template(template).render(values)


def stylesheet() -> str:
    """Return the stylesheet of the pages."""
    return (_FOLDER / "style.css").read_text()


def _format_milliseconds(value: float) -> str:
    return f"{value:.3g} ms" if value >= 0.1 else f"{value * 1000:.3g} µs"


def _format_minute(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M}"


def _break_after_dots(name: str) -> Markup:
    return Markup("<wbr>").join(re.split(r"(?<=\.)", name))


_environment = Environment(
    loader=FileSystemLoader(_FOLDER), autoescape=True, trim_blocks=True, lstrip_blocks=True
)
_environment.filters |= {
    "ms": _format_milliseconds,
    "minute": _format_minute,
    "dotted": _break_after_dots,
}
_environment.globals["version"] = __version__
