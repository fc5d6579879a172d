"""Templates of the pages, and the headers that all pages are sent with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

from jinja2 import Environment, FileSystemLoader, Undefined, UndefinedError
from jinja2.utils import missing
from markupsafe import Markup

from dejavu_cache import __version__
from dejavu_cache.system.notices import counted, printable_output

__all__ = ["HEADERS", "format_milliseconds", "icon", "render", "stylesheet"]

_FOLDER = Path(__file__).parent / "templates"

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    # Without a referrer, browsers would call the origin of the pages' own forms `null`.
    "Referrer-Policy": "same-origin",
    "Cache-Control": "private, no-store",
}


def render(template: str, **values: object) -> str:
    """Render a template to HTML."""
    return _environment.get_template(template).render(values)


def stylesheet() -> str:
    """Return the stylesheet of the pages."""
    return (_FOLDER / "style.css").read_text()


def icon() -> str:
    """Return the icon of the pages as SVG."""
    return (_FOLDER / "favicon.svg").read_text()


def format_milliseconds(value: float) -> str:
    """Return a time with its unit, to three digits."""
    if value >= 999.5:  # rounded to three digits, it is a second
        amount, unit = value / 1000, "s"
    else:
        amount, unit = (value, "ms") if value >= 0.9995 else (value * 1000, "µs")
    digits = f"{amount:#.3g}".rstrip(".") if amount < 999.5 else f"{amount:,.0f}"
    return f"{digits} {unit}"


def _format_minute(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M}"


def _format_moment(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M}"


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


class _OptionalVariable(Undefined):
    """A variable that a page may leave out; an attribute that an object lacks is a mistake.

    It would show nothing, and nobody would see that a page says less.
    """

    def __init__(
        self, hint: str | None = None, obj: Any = missing, name: str | None = None, *more: Any
    ) -> None:
        super().__init__(hint, obj, name, *more)
        if obj is not missing and not isinstance(obj, Mapping):  # whose keys may be optional
            raise UndefinedError(self._undefined_message)


_environment = Environment(
    loader=FileSystemLoader(_FOLDER),
    autoescape=True,
    finalize=printable_output,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=_OptionalVariable,
)
_environment.filters |= {
    "counted": partial(counted, grouped=True),
    "ms": format_milliseconds,
    "minute": _format_minute,
    "moment": _format_moment,
    "dotted": _break_after_dots,
    "duration": _format_duration,
    "with_query": _change_query,
}
_environment.globals["version"] = __version__
