"""The config that a recorded scenario gives a launch."""

from __future__ import annotations

from ..model.record import Record
from ..model.resolution import Resolution
from ..model.scenario import Config
from ..model.selection import winner
from ..stores import Found
from ..triton_internals.config_names import describe
from .request import Request

__all__ = ["best_config", "resolve_from_record"]


def resolve_from_record(request: Request, found: Found | None) -> Resolution | None:
    """Return the resolution to a record's pin, or else to the best declared config, or None.

    Args:
        request: the scenario in question.
        found: a record of this scenario or of one that may stand in for it.
    """
    if found is None:
        return None
    record = found.record
    missing = len(request.unmeasured_configs(record))
    pinned = request.declared.pinned_config(record.pinned) if record.pinned else None
    if pinned is not None:
        return request.resolution("pinned", pinned, store=found.store)
    best = best_config(request, record)
    if best is None:
        return None
    return request.resolution("exact", request.declared[best], store=found.store, missing=missing)


def best_config(request: Request, record: Record) -> Config | None:
    """Return the fastest declared config by a record's timings, or None if none has a timing."""
    return winner(record, set(request.declared), describe(request.default))
