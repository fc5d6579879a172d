"""The worklist: scenarios that processes looked up and that have no record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dejavu_cache.model.scenario import Context, Scenario

from ..errors import TooLargeError
from ..storage import contexts, misses
from ..storage.database import Database
from .access import Principal

__all__ = ["count_misses", "list_misses"]


def count_misses(
    database: Database,
    principal: Principal,
    namespace: str,
    reported: Sequence[tuple[Context, Scenario, int]],
    limit: int,
) -> int:
    """Add reported misses to the worklist.

    Args:
        database: The server's database.
        principal: Who reports; needs the role `read`.
        namespace: The namespace of the worklist.
        reported: Scenarios with their context and how often each was missed.
        limit: The largest number of entries in one report.

    Returns:
        The number of misses counted.

    Raises:
        AccessDeniedError: The principal may not read the namespace.
        TooLargeError: The report has more than `limit` entries.
    """
    principal.require("read", namespace)
    if len(reported) > limit:
        raise TooLargeError(
            f"{len(reported)} misses in one request: send at most {limit} at a time"
        )
    with database.write() as connection:
        ids = contexts.ensure(
            connection, namespace, [context for context, _, _ in reported], hold=True
        )
        counts: Counter[tuple[int, Scenario]] = Counter()
        for context, scenario, times in reported:
            counts[ids[context.digest], scenario] += times
        misses.add_counts(connection, counts)
    return sum(times for _, _, times in reported)


def list_misses(
    database: Database, principal: Principal, namespace: str, kernel: str | None, limit: int
) -> list[misses.CountedMiss]:
    """List the worklist, most frequent first; scenarios that have a record by now are left out."""
    principal.require("read", namespace)
    with database.read() as connection:
        return misses.list_misses(connection, namespace, kernel, limit)
