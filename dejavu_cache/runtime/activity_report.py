"""Report what a program benchmarks, compiles and misses, for `dejavu-cache verify`.

Every process that inherits `DEJAVU_CACHE_REPORT` appends events to a file of its own in that
folder, as lines of JSON. Triton's hooks report compilations from when the first kernel is
decorated.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from ..errors import DejavuError
from ..model.resolution import Resolution
from ..settings import current_settings
from ..system.notices import warn_once
from ..system.plurals import counted
from ..system.safe_files import open_to_append, read_file
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
    """Something that a process did.

    Attributes:
        what: `started`: the process began its report. `hit`, `missed`: a scenario was resolved by
            its record, or had none. `loaded`, `compiled`: Triton found a binary, or made it.
            `built`: a C compiler built a host module. `benchmarked`: configs were measured.
            `lost`: something that the process could not report.
        about: the program's arguments, the kernel and its scenario, or a module's name.
        detail: the config, the specialisation, or how often.
        process: the process's id.
    """

    what: Literal["started", "hit", "missed", "loaded", "compiled", "built", "benchmarked", "lost"]
    about: str
    detail: str = ""
    process: int = 0

    @property
    def is_unwanted(self) -> bool:
        """Whether a program that is fully prewarmed would not do it."""
        return self.what in ("missed", "compiled", "built", "benchmarked", "lost")


_LOST = ".lost"
"""Ending of the name of an empty file beside a report that is not complete."""


@cache
def _report_file(process: int) -> Path | None:
    """Return the file of a process, a forked one's own, or None without a report."""
    try:
        folder = current_settings().report
    except DejavuError:  # the first launch reports the broken setting
        return None
    if not folder:
        return None
    with suppress(OSError):  # Whoever writes the file reports that there is no folder for it.
        Path(folder).mkdir(parents=True, exist_ok=True)
    return Path(folder) / f"{time.time_ns()}-{process}.jsonl"


def report_event(what: str, about: str, detail: str = "") -> None:
    """Append an event to the report, if there is one; it is written before the program goes on."""
    path = _report_file(os.getpid())
    if path is None:
        return
    line = (
        json.dumps({"what": what, "about": about, "detail": detail, "process": os.getpid()}) + "\n"
    )
    try:
        with open(open_to_append(path), "a", encoding="utf-8") as file:
            file.write(line)
    except OSError as error:
        warn_once(f"report {path}", f"{path} cannot be written: {error}")
        with suppress(OSError):  # a full disk may still take an empty file
            os.close(open_to_append(path.with_suffix(_LOST)))


def report_resolution(
    kernel: str, scenario: object, resolution: Resolution, benchmarked: int
) -> None:
    """Report how a scenario's config was found."""
    about = f"{kernel}{scenario}"
    if benchmarked:
        report_event("benchmarked", about, counted(benchmarked, "config"))
    elif resolution.only or resolution.how in ("exact", "pinned"):
        report_event("hit", about, str(resolution.config))
    else:
        report_event("missed", about, f"resolved by: {resolution.how}")


@cache
def report_triton_activity() -> None:
    """Report what Triton compiles, builds and benchmarks, if `DEJAVU_CACHE_REPORT` is set."""
    if _report_file(os.getpid()) is None:
        return
    report_event("started", " ".join(sys.argv)[:500])

    def listener(*, src: Any, metadata: dict[str, Any], cache_hit: bool, **more: Any) -> None:
        name = getattr(getattr(src, "fn", None), "_fn_name", None) or metadata.get("name", "?")
        report_event("loaded" if cache_hit else "compiled", str(name), _constants_of(src))

    add_compilation_listener(listener)
    wrap_cache_manager(
        lambda inner: reporting_cache(inner, lambda module: report_event("built", module))
    )
    wrap_bench(_reporting_bench)


def _constants_of(src: Any) -> str:
    constants = {
        src.fn.arg_names[path[0]]: value for path, value in getattr(src, "constants", {}).items()
    }
    return ", ".join(f"{name}={value}" for name, value in constants.items())[:500]


def _reporting_bench(bench: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `Autotuner._bench` to report other autotuners; cached ones report their scenario."""

    @functools.wraps(bench)
    def report_and_bench(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not hasattr(self, "benchmarked"):
            report_event(
                "benchmarked",
                getattr(self.base_fn, "__name__", "?"),
                str(kwargs.get("config", ""))[:200],
            )
        return bench(self, *args, **kwargs)

    return report_and_bench


def read_events(folder: Path) -> list[ActivityEvent]:
    """Return the events in a folder, by the start of their processes; broken lines are left out.

    A report that ends within a line, since its process was killed, has lost an event.
    """
    events = []
    for path in sorted(folder.glob("*.jsonl")):
        try:
            text = read_file(path).decode(errors="replace")
        except OSError:  # not written by a program: a link, a pipe
            continue
        for line in text.splitlines():
            try:
                events.append(ActivityEvent.model_validate_json(line))
            except ValidationError:
                continue
        if not text.endswith("\n"):
            events.append(_lost_event())
    return [*events, *(_lost_event() for _ in folder.glob(f"*{_LOST}"))]


def _lost_event() -> ActivityEvent:
    return ActivityEvent(what="lost", about="what a process could not report")
