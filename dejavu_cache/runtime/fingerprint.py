"""Fingerprint of a run: which config every kernel ran, and from which record.

Every process that inherits `DEJAVU_CACHE_FINGERPRINT` appends lines of JSON to a file of its own in
that folder: one about itself, and one for each scenario whose config it chose. `dejavu-cache
compare` tells two such folders apart.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from ..errors import DejavuError
from ..model.resolution import Resolution
from ..model.scenario import now
from ..settings import current_settings
from ..system.fork_lock import ForkLock
from ..system.notices import warn_once, whoami
from ..system.safe_files import open_to_append, read_file
from ..triton_internals.config_names import describe
from .request import Request

__all__ = [
    "ConfigRun",
    "ProcessStart",
    "RunFingerprint",
    "is_written",
    "read_fingerprint",
    "write_choice",
]


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


def write_choice(request: Request, resolution: Resolution) -> None:
    """Append a launch's config to the fingerprint, if one is written.

    Args:
        request: the launch's scenario.
        resolution: its config, with the evidence of its record.
    """
    context, evidence = resolution.context, resolution.evidence
    stand_in = resolution.recorded_in or resolution.recorded_for
    run = ConfigRun(
        kernel=context.kernel.name,
        source=context.kernel.source,
        scenario=str(request.scenario),
        device=context.environment.device.name,
        triton=context.environment.triton,
        method=context.problem.method,
        config=str(describe(resolution.config)),
        how=resolution.how,
        store=resolution.store,
        record=(
            f"{(resolution.recorded_in or context).digest} "
            f"{resolution.recorded_for or resolution.scenario}"
            if stand_in
            else None
        ),
        measured_at=evidence.at.isoformat() if evidence and evidence.at else None,
        measured_by=(evidence.pinned_by or evidence.by) if evidence else "",
    )
    _append("run", run)


def is_written() -> bool:
    """Return whether this process writes a fingerprint."""
    return _file() is not None


_starting = ForkLock()


def _file() -> Path | None:
    """Return the file of this process, a forked one's own, after its first line is written."""
    with _starting:
        return _start(os.getpid())


@cache
def _start(process: int) -> Path | None:
    try:
        settings = current_settings()
    except DejavuError:  # the first launch reports the broken setting
        return None
    if not settings.fingerprint:
        return None
    path = Path(settings.fingerprint) / f"{time.time_ns()}-{process}.jsonl"
    start = ProcessStart(
        command=" ".join(sys.argv)[:500],
        by=whoami(),
        at=now().isoformat(),
        process=process,
        python=platform.python_version(),
        package=_version(),
        mode=settings.mode.value,
        url=settings.url or settings.default_url,
    )
    _write(path, "process", start)
    return path


def _append(kind: str, entry: BaseModel) -> None:
    path = _file()
    if path is not None:
        _write(path, kind, entry)


def _write(path: Path, kind: str, entry: BaseModel) -> None:
    line = json.dumps({kind: entry.model_dump(exclude_none=True)}, ensure_ascii=False) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Arguments and folders may have bytes that are no text.
        with open(open_to_append(path), "a", encoding="utf-8", errors="replace") as file:
            file.write(line)
    except OSError as error:
        warn_once(f"fingerprint {path}", f"{path} cannot be written: {error}")


def _version() -> str:
    from .. import __version__

    return __version__


def read_fingerprint(path: Path) -> RunFingerprint:
    """Return the fingerprint in a folder or a file; lines that a kill cut short are left out.

    Raises:
        OSError: the path cannot be read.
    """
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    fingerprint = RunFingerprint(processes=[], runs=[])
    for file in files:
        # A name in a line may have what Python, but not the writer, takes for an end of line.
        for line in read_file(file).decode(errors="replace").split("\n"):
            with suppress(ValueError, TypeError, ValidationError, RecursionError):
                _add_entry(fingerprint, json.loads(line))
    return fingerprint


def _add_entry(fingerprint: RunFingerprint, entry: dict[str, Any]) -> None:
    if "process" in entry:
        fingerprint.processes.append(ProcessStart.model_validate(entry["process"]))
    elif "run" in entry:
        fingerprint.runs.append(ConfigRun.model_validate(entry["run"]))
