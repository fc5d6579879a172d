"""The worklist: scenarios that processes looked up and that have no record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from sqlalchemy import Connection

from dejavu_cache.model.scenario import Context, Scenario

from ..errors import NotFoundError, TooLargeError
from ..storage import contexts, misses, summaries
from ..storage.database import Database
from .access import Principal
from .log import Action, write_log

__all__ = [
    "MOST_MISSED_CONTEXTS",
    "MOST_MISSES",
    "claim_miss",
    "count_misses",
    "dismiss_miss",
    "list_misses",
]

MOST_MISSES = 100_000
"""Misses of all namespaces, up to which those who may only read add new ones."""
MOST_MISSED_CONTEXTS = 2000
"""Contexts without records, likewise: pages load all contexts of a namespace."""
_ROOM_OF_WRITERS = 2
"""Multiple of both up to which writers add, so that readers leave them room."""
_LONGEST, _LONGEST_OF_READERS = 64 * 1024, 8 * 1024
"""Characters of a scenario and its context beyond which a miss is not counted."""

_Report = Sequence[tuple[Context, Scenario, int]]


def count_misses(
    database: Database,
    principal: Principal,
    namespace: str,
    reported: _Report,
    limit: int,
) -> int:
    """Add reported misses to the worklist.

    Nobody can fill the database with them: they add to what is on the worklist, and new misses
    while there are fewer than `MOST_MISSES`, of new contexts while fewer than
    `MOST_MISSED_CONTEXTS` have no records. Writers may add twice as many as those who only read.

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
    is_writer = principal.may("write", namespace)
    longest = _LONGEST if is_writer else _LONGEST_OF_READERS
    reported = [miss for miss in reported if len(miss[0].text) + len(miss[1].text) <= longest]
    with database.write() as connection:
        share = _ROOM_OF_WRITERS if is_writer else 1
        reported = _select_fitting(connection, namespace, reported, share)
        ids = contexts.ensure(
            connection, namespace, [context for context, _, _ in reported], hold=True
        )
        counts: Counter[tuple[int, Scenario]] = Counter()
        for context, scenario, times in reported:
            counts[ids[context.digest], scenario] += times
        misses.add_counts(connection, counts)
        summaries.add_to_day(connection, namespace, missed=counts.total())
    return counts.total()


def _select_fitting(
    connection: Connection, namespace: str, reported: _Report, share: int
) -> _Report:
    """Return the misses that are on the worklist, and of the others those for which is room."""
    room = share * MOST_MISSES - misses.count_all(connection)
    places = share * MOST_MISSED_CONTEXTS - contexts.count_empty(connection)
    digests = sorted({context.digest for context, _, _ in reported})
    if room >= len(reported) and places >= len(digests):
        return reported
    present = set(contexts.load_revisions(connection, namespace, digests))
    scenarios = sorted({scenario.digest for _, scenario, _ in reported})
    known = misses.find_known(connection, namespace, scenarios)
    fitting = []
    for miss in reported:
        context, key = miss[0].digest, (miss[0].digest, miss[1].digest)
        if key not in known and room > 0 and (context in present or places > 0):
            places -= context not in present
            present.add(context)
            known.add(key)
            room -= 1
        if key in known:
            fitting.append(miss)
    return fitting


def list_misses(
    database: Database, principal: Principal, namespace: str, kernel: str | None, limit: int
) -> list[misses.CountedMiss]:
    """List the worklist, most frequent first; scenarios that have a record by now are left out."""
    principal.require("read", namespace)
    with database.read() as connection:
        return misses.list_misses(connection, namespace, kernel, limit)


def claim_miss(
    database: Database,
    principal: Principal,
    namespace: str,
    context: str,
    scenario: str,
    *,
    release: bool = False,
) -> None:
    """Note that the principal will tune a missed scenario, or with `release`, that nobody will.

    Args:
        database: The server's database.
        principal: Who asks; needs the role `write`.
        namespace: The namespace of the worklist.
        context: The digest of the context.
        scenario: The digest of the scenario.
        release: Whether to remove a claim, whoever made it.

    Raises:
        AccessDeniedError: The principal lacks the role `write`.
        NotFoundError: The scenario is not on the worklist.
    """
    by = None if release else principal.name
    action: Action = "release miss" if release else "claim miss"
    _change(
        database, principal, namespace, context, scenario, action,
        lambda connection, context_id: misses.claim(connection, context_id, scenario, by),
    )  # fmt: skip


def dismiss_miss(
    database: Database, principal: Principal, namespace: str, context: str, scenario: str
) -> None:
    """Take a scenario off the worklist, until it is missed again.

    Raises:
        AccessDeniedError: The principal lacks the role `write`.
        NotFoundError: The scenario is not on the worklist.
    """
    _change(
        database, principal, namespace, context, scenario, "dismiss miss",
        lambda connection, context_id: misses.dismiss(connection, context_id, scenario),
    )  # fmt: skip


def _change(
    database: Database,
    principal: Principal,
    namespace: str,
    context: str,
    scenario: str,
    action: Action,
    change: Callable[[Connection, int], bool],
) -> None:
    principal.require("write", namespace)
    with database.write() as connection:
        context_id = contexts.lock_existing(connection, namespace, context)
        if context_id is None or not change(connection, context_id):
            raise NotFoundError(
                "this scenario is not on the worklist: it was tuned or dismissed meanwhile"
            )
        kernel = contexts.kernel_of(connection, context_id)
        detail = {"context": context, "scenario": scenario}
        write_log(connection, principal, action, namespace, kernel, **detail)
