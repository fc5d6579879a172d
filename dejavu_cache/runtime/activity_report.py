"""What a program benchmarked, compiled and missed, as lines of JSON in a folder: `dejavu-cache verify` reads them.

It is told by Triton's own hooks, from when the first kernel is decorated, in every process that inherits
`DEJAVU_CACHE_REPORT`.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from ..errors import DejavuError
from ..model.resolution import Resolution
from ..notices import warn_once
from ..settings import current_settings
from ..triton_internals.cache_managers import reporting_cache
from ..triton_internals.hooks import add_compilation_listener, wrap_bench, wrap_cache_manager

__all__ = [
    "ActivityEvent",
    "read_events",
    "report_event",
    "report_resolution",
    "report_triton_activity",
]


class ActivityEvent(BaseModel):
    """One thing that happened.

    `hit`, `missed`: a scenario was resolved by its record, or had none. `loaded`, `compiled`: Triton found a binary,
    or had to make it. `built`: a C compiler was run for a module of the host. `benchmarked`: configs were measured.
    """

    what: Literal["started", "hit", "missed", "loaded", "compiled", "built", "benchmarked"]
    about: str
    """The kernel and its scenario, or a module's name."""
    detail: str = ""
    process: int = 0

    @property
    def unwanted(self) -> bool:
        """Whether a program that is all prewarmed would not have done it."""
        return self.what in ("missed", "compiled", "built", "benchmarked")


@cache
def _file() -> Path | None:
    try:
        folder = current_settings().report
    except DejavuError:  # the first launch says so
        return None
    return Path(folder) / f"{time.time_ns()}-{os.getpid()}.jsonl" if folder else None


def report_event(what: str, about: str, detail: str = "") -> None:
    """Notes an event, if somebody wants to know; it is on its way to the disk before the program goes on."""
    path = _file()
    if path is None:
        return
    line = (
        json.dumps({"what": what, "about": about, "detail": detail, "process": os.getpid()}) + "\n"
    )
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(line)
    except OSError as error:
        warn_once(f"report {path}", f"{path} cannot be written: {error}")


def report_resolution(
    kernel: str, scenario: object, resolution: Resolution, benchmarked: int
) -> None:
    """Notes how a scenario's config was found."""
    about = f"{kernel}{scenario}"
    if benchmarked:
        report_event("benchmarked", about, f"{benchmarked} configs")
    elif resolution.how in ("exact", "pinned"):
        report_event("hit", about, str(resolution.config))
    else:
        report_event("missed", about, f"resolved by: {resolution.how}")


@cache
def report_triton_activity() -> None:
    """Begins to watch Triton, if `DEJAVU_CACHE_REPORT` says so."""
    if _file() is None:
        return
    report_event("started", " ".join(sys.argv)[:500])

    def listener(*, src: Any, metadata: dict[str, Any], cache_hit: bool, **more: Any) -> None:
        name = getattr(getattr(src, "fn", None), "_fn_name", None) or metadata.get("name", "?")
        report_event("loaded" if cache_hit else "compiled", str(name), _specialisation(src))

    add_compilation_listener(listener)
    wrap_cache_manager(
        lambda inner: reporting_cache(inner, lambda module: report_event("built", module))
    )
    wrap_bench(_told)


def _specialisation(src: Any) -> str:
    constants = {
        src.fn.arg_names[path[0]]: value for path, value in getattr(src, "constants", {}).items()
    }
    return ", ".join(f"{name}={value}" for name, value in constants.items())[:500]


def _told(bench: Callable[..., Any]) -> Callable[..., Any]:
    """Tells of autotuners that are not ours: ours tell with their scenario."""

    @functools.wraps(bench)
    def told(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not hasattr(self, "benchmarked"):
            report_event(
                "benchmarked",
                getattr(self.base_fn, "__name__", "?"),
                str(kwargs.get("config", ""))[:200],
            )
        return bench(self, *args, **kwargs)

    return told


def read_events(folder: Path) -> list[ActivityEvent]:
    """All that was noted in a folder, in the order of the processes' start; a line that was cut is left out."""
    found = []
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                found.append(ActivityEvent.model_validate_json(line))
            except ValidationError:
                continue
    return found
