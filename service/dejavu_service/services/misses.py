"""The worklist: what was wanted and not there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from dejavu_cache.model.scenario import Context, Scenario

from ..problems import ProblemError
from ..storage import contexts, misses
from ..storage.database import Database
from .access import Principal

__all__ = ["count", "listed"]


def count(
    database: Database,
    who: Principal,
    namespace: str,
    seen: Sequence[tuple[Context, Scenario, int]],
    most: int,
) -> int:
    """Adds to the worklist; returns the misses that were counted.

    Raises:
        ProblemError: 403, or 413 with more than `most` in one request.
    """
    who.require("read", namespace)
    if len(seen) > most:
        raise ProblemError(413, f"{len(seen)} misses in one request: send at most {most} at a time")
    with database.write() as connection:
        ids = contexts.ensure(connection, namespace, [context for context, _, _ in seen], hold=True)
        wanted: Counter[tuple[int, Scenario]] = Counter()
        for context, scenario, times in seen:
            wanted[ids[context.digest], scenario] += times
        misses.count(connection, wanted)
    return sum(times for _, _, times in seen)


def listed(
    database: Database, who: Principal, namespace: str, kernel: str | None, limit: int
) -> Iterable[misses.Wanted]:
    """The worklist, most wanted first; a scenario with a record is none of it."""
    who.require("read", namespace)
    with database.read() as connection:
        return misses.listed(connection, namespace, kernel, limit)
