"""What a run writes down about itself, for `verify` and `diff`.

Every process that inherits `DEJAVU_CACHE_REPORT` appends lines of JSON to a file of its own in that
folder, one for each event.
"""

import json
import os
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ValidationError

from ..errors import DejavuError
from ..settings import current_settings
from ..system.fork_lock import ForkLock
from ..system.notices import warn_once
from ..system.safe_files import open_to_append, read_file

What = Literal["started", "hit", "missed", "loaded", "compiled", "built", "benchmarked", "lost"]


class ActivityEvent(BaseModel):
    """Something that a process did.

    Attributes:
        what: `started`: the process began its report. `hit`, `missed`: a scenario was resolved by
            its record, or had none. `benchmarked`: configs were measured, here or by another
            autotuner. `loaded`, `compiled`: Triton found a binary, or made it. `built`: a C
            compiler built a host module. `lost`: something that the process could not report.
        about: the program's arguments, the kernel and its scenario, or a module's name.
        detail: the config and how it was found, or the specialisation.
        process: the process's id.
    """

    what: What
    about: str
    detail: str = ""
    process: int = 0

    @property
    def is_unwanted(self) -> bool:
        """Whether a program that is fully prewarmed would not do it."""
        return self.what in ("missed", "compiled", "built", "benchmarked", "lost")


_LOST = ".lost"
"""Ending of the name of an empty file beside a report that is not complete."""

_beginning = ForkLock()


def has_report() -> bool:
    """Return whether this process reports its activity."""
    return _file() is not None


def report_event(what: What, about: str, detail: str = "") -> None:
    """Append an event to the report, if there is one; it is written before the program goes on."""
    if (path := _file()) is None:
        return
    event = ActivityEvent.model_construct(
        what=what, about=about, detail=detail, process=os.getpid()
    )
    if not _append(path, event):
        with suppress(OSError):  # a full disk may still take an empty file
            os.close(open_to_append(path.with_suffix(_LOST)))


def _file() -> Path | None:
    """Return the file of this process, a forked one's own; threads that begin it get one file."""
    with _beginning:
        return _begin(os.getpid())


@cache
def _begin(process: int) -> Path | None:
    try:
        folder = current_settings().report
    except DejavuError:  # the first launch reports the broken setting
        return None
    if not folder:
        return None
    with suppress(OSError):  # whoever writes the file reports that there is no folder for it
        Path(folder).mkdir(parents=True, exist_ok=True)
    return Path(folder) / f"{time.time_ns()}-{process}.jsonl"


def _append(path: Path, entry: BaseModel) -> bool:
    """Append a line to a file; return whether it is there."""
    try:
        # Arguments and folders may have bytes that are no text.
        with open(open_to_append(path), "a", encoding="utf-8", errors="replace") as file:
            file.write(json.dumps(entry.model_dump(), ensure_ascii=False) + "\n")
    except OSError as error:
        warn_once(f"run {path}", f"{path} cannot be written: {error}")
        return False
    return True


def read_events(folder: Path) -> list[ActivityEvent]:
    """Return the events in a folder, by the start of their processes; broken lines are left out.

    A report that ends within a line, since its process was killed, has lost an event.
    """
    lost = ActivityEvent(what="lost", about="what a process could not report")
    events = []
    for path in sorted(folder.glob("*.jsonl")):
        try:
            # A name in a line may have what Python, but not the writer, takes for an end of line.
            *lines, rest = read_file(path).decode(errors="replace").split("\n")
        except OSError:  # not written by a program: a link, a pipe
            continue
        for line in lines:
            with suppress(ValidationError):
                events.append(ActivityEvent.model_validate_json(line))
        if rest or not lines:
            events.append(lost)
    return [*events, *(lost for _ in folder.glob(f"*{_LOST}"))]
