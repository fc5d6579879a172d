"""What a run writes down about itself: its activity for `verify`, its configs for `compare`.

Every process that inherits `DEJAVU_CACHE_REPORT` or `DEJAVU_CACHE_FINGERPRINT` appends lines of
JSON to a file of its own in that folder. A report has one line for each event. A fingerprint has
one about the process, and one for each scenario whose config it chose.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from ..errors import DejavuError
from ..model.scenario import now
from ..settings import Settings, current_settings
from ..system.fork_lock import ForkLock
from ..system.notices import warn_once, whoami
from ..system.safe_files import open_to_append, read_file

__all__ = [
    "ActivityEvent",
    "ConfigRun",
    "ProcessStart",
    "RunFingerprint",
    "has_fingerprint",
    "has_report",
    "read_events",
    "read_fingerprint",
    "report_event",
    "write_config_run",
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


class ProcessStart(BaseModel):
    """What a process tells about itself.

    Attributes:
        command: its command line.
        by: user and host.
        at: when it wrote its first line.
        process: its id.
        python: the version of Python.
        package: the version of this package.
        mode: the mode of kernels that declare none.
        url: the stores.
    """

    command: str
    by: str
    at: str
    process: int
    python: str
    package: str
    mode: str
    url: str


class ConfigRun(BaseModel):
    """A scenario of a kernel, and the config that it ran.

    Attributes:
        kernel: the kernel's name.
        source: its source hash.
        scenario: the bucketed values and dtypes, as text.
        device: the GPU's name.
        triton: the version of Triton.
        method: the benchmark method.
        config: the config, as text.
        how: how it was found.
        store: the store that has the record, or None.
        record: the context's digest and the scenario of the record, if it is another one, or None.
        measured_at: when the config was measured or pinned, or None.
        measured_by: who measured or pinned it.
    """

    kernel: str
    source: str
    scenario: str
    device: str
    triton: str
    method: str
    config: str
    how: str
    store: str | None = None
    record: str | None = None
    measured_at: str | None = None
    measured_by: str = ""


class RunFingerprint(BaseModel):
    """What the processes of a run have written.

    Attributes:
        processes: the processes.
        runs: the configs that they ran, in the order in which they were chosen.
    """

    processes: list[ProcessStart]
    runs: list[ConfigRun]


_Kind = Literal["report", "fingerprint"]
"""A setting that names a folder."""

_LOST = ".lost"
"""Ending of the name of an empty file beside a report that is not complete."""

_beginning = ForkLock()


def has_report() -> bool:
    """Return whether this process reports its activity."""
    return _file("report") is not None


def has_fingerprint() -> bool:
    """Return whether this process writes a fingerprint."""
    return _file("fingerprint") is not None


def report_event(what: str, about: str, detail: str = "") -> None:
    """Append an event to the report, if there is one; it is written before the program goes on."""
    if (path := _file("report")) is None:
        return
    entry = {"what": what, "about": about, "detail": detail, "process": os.getpid()}
    if not _append(path, entry):
        with suppress(OSError):  # a full disk may still take an empty file
            os.close(open_to_append(path.with_suffix(_LOST)))


def write_config_run(run: ConfigRun) -> None:
    """Append a scenario and its config to the fingerprint, if there is one."""
    if (path := _file("fingerprint")) is not None:
        _append(path, {"run": run.model_dump(exclude_none=True)})


def _file(kind: _Kind) -> Path | None:
    """Return the file of this process, a forked one's own; threads that begin it get one file."""
    with _beginning:
        return _begin(kind, os.getpid())


@cache
def _begin(kind: _Kind, process: int) -> Path | None:
    """Name the file of a process, and write what it begins with; None without a folder."""
    try:
        settings = current_settings()
    except DejavuError:  # the first launch reports the broken setting
        return None
    folder = settings.report if kind == "report" else settings.fingerprint
    if not folder:
        return None
    with suppress(OSError):  # whoever writes the file reports that there is no folder for it
        Path(folder).mkdir(parents=True, exist_ok=True)
    path = Path(folder) / f"{time.time_ns()}-{process}.jsonl"
    if kind == "fingerprint":
        _append(path, {"process": _describe_process(settings).model_dump()})
    return path


def _describe_process(settings: Settings) -> ProcessStart:
    from .. import __version__

    return ProcessStart(
        command=" ".join(sys.argv)[:500],
        by=whoami(),
        at=now().isoformat(),
        process=os.getpid(),
        python=platform.python_version(),
        package=__version__,
        mode=settings.mode.value,
        url=settings.url or settings.default_url,
    )


def _append(path: Path, entry: dict[str, Any]) -> bool:
    """Append a line to a file; return whether it is there."""
    try:
        # Arguments and folders may have bytes that are no text.
        with open(open_to_append(path), "a", encoding="utf-8", errors="replace") as file:
            file.write(json.dumps(entry, ensure_ascii=False) + "\n")
    except OSError as error:
        warn_once(f"run {path}", f"{path} cannot be written: {error}")
        return False
    return True


def read_events(folder: Path) -> list[ActivityEvent]:
    """Return the events in a folder, by the start of their processes; broken lines are left out.

    A report that ends within a line, since its process was killed, has lost an event.
    """
    events = []
    for path in sorted(folder.glob("*.jsonl")):
        try:
            *lines, rest = _lines(path)
        except OSError:  # not written by a program: a link, a pipe
            continue
        for line in lines:
            with suppress(ValidationError):
                events.append(ActivityEvent.model_validate_json(line))
        if rest or not lines:
            events.append(_lost_event())
    return [*events, *(_lost_event() for _ in folder.glob(f"*{_LOST}"))]


def _lost_event() -> ActivityEvent:
    return ActivityEvent(what="lost", about="what a process could not report")


def read_fingerprint(path: Path) -> RunFingerprint:
    """Return the fingerprint in a folder or a file; lines that a kill cut short are left out.

    Raises:
        OSError: the path cannot be read.
    """
    fingerprint = RunFingerprint(processes=[], runs=[])
    for entry in _entries(sorted(path.glob("*.jsonl")) if path.is_dir() else [path]):
        with suppress(TypeError, ValidationError):
            if "process" in entry:
                fingerprint.processes.append(ProcessStart.model_validate(entry["process"]))
            elif "run" in entry:
                fingerprint.runs.append(ConfigRun.model_validate(entry["run"]))
    return fingerprint


def _entries(files: list[Path]) -> Iterator[Any]:
    for file in files:
        for line in _lines(file):
            with suppress(ValueError, RecursionError):
                yield json.loads(line)


def _lines(file: Path) -> list[str]:
    """Return a file's lines and what is behind the last one's end.

    A name in a line may have what Python, but not the writer, takes for an end of line.
    """
    return read_file(file).decode(errors="replace").split("\n")
