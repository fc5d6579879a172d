"""Notes, beside Inductor's cache of compiled graphs, of the records by which configs were chosen.

Inductor finds a graph by a key, and runs no pass over it again. So the notes that no longer agree
with the records are a part of the key: a graph is found only while its configs' notes agree.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from ..model.recall import part_digests
from ..model.record import Record
from ..model.scenario import Scenario, canonical_json
from ..runtime.cached_autotuner import CachedAutotuner
from ..settings import current_settings
from ..system.safe_files import open_to_append, read_file

__all__ = ["note_choice", "outdated_notes"]

_FILE = "dejavu-cache-choices.jsonl"
"""Grows by a line with each choice that a graph was compiled by, and is deleted with the graphs.

A line that is dropped would let the graphs be found again that it keeps from being found.
"""


def note_choice(kernel: CachedAutotuner, scenario: Scenario) -> None:
    """Note what the records say of a scenario, before a graph is compiled by it.

    Raises:
        OSError: the note cannot be written.
    """
    note = _note(kernel, scenario)
    path = _notes_file()
    if note not in _read_notes(path):
        handle = open_to_append(path)
        try:
            os.write(handle, f"{note}\n".encode())
        finally:
            os.close(handle)


def outdated_notes(kernels: Iterable[CachedAutotuner]) -> str:
    """Return a digest of the notes of some kernels that no longer agree with the records."""
    notes = _read_notes(_notes_file())
    by_owner = {_owner(kernel): kernel for kernel in kernels} if notes else {}
    outdated = sorted(note for note in notes if _is_outdated(note, by_owner))
    return hashlib.sha256("\n".join(outdated).encode()).hexdigest()


def _is_outdated(note: str, kernels: Mapping[tuple[str, str], CachedAutotuner]) -> bool:
    try:
        url, context, scenario_fields, _ = json.loads(note)
        kernel = kernels.get((url, context))
        if kernel is None:
            return False
        scenario = Scenario.model_validate(scenario_fields)  # most of the time that a note takes
    except (ValueError, TypeError):  # damaged, or of another version
        return True
    until, outdated = _asked.get(note, (0.0, False))
    if not kernel.home.remote or time.monotonic() >= until:
        outdated = _note(kernel, scenario) != note
        _asked[note] = time.monotonic() + (current_settings().refresh or math.inf), outdated
    return outdated


_asked: dict[str, tuple[float, bool]] = {}
"""Whether a note was outdated, and until when a server need not be asked again.

Inductor wants its key three times for each graph.
"""


def _note(kernel: CachedAutotuner, scenario: Scenario) -> str:
    found = kernel.home.get(kernel.context, scenario)
    choice = None if found is None else _choice(found.record)
    scenario_fields = scenario.model_dump(mode="json")
    return canonical_json([*_owner(kernel), scenario_fields, choice])


def _owner(kernel: CachedAutotuner) -> tuple[str, str]:
    return kernel.home.url, kernel.context.digest


def _choice(record: Record) -> list[str]:
    """Return what decides which config a record stands for."""
    chosen = record.pinned or (record.winner.config if record.winner else None)
    if chosen is None:
        return sorted(part_digests(record))
    wrong = {part.config.text for part in record.measurements if part.is_wrong}
    is_open = record.winner is not None and not (record.pinned or record.winner.is_compared)
    return [chosen.text, *sorted(wrong), *(["not compared"] if is_open else [])]


def _notes_file() -> Path:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return Path(cache_dir(), _FILE)


def _read_notes(path: Path) -> set[str]:
    try:
        return set(read_file(path).decode(errors="replace").splitlines())
    except FileNotFoundError:
        return set()
