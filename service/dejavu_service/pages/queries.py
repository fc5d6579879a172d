"""What the pages may show."""

from __future__ import annotations

from typing import NamedTuple

from dejavu_cache.model.record import Record
from dejavu_cache.model.scenario import Context, Scenario

from ..services.access import Principal
from ..storage import contexts, misses, records
from ..storage.database import Database
from .views import Cell, Matrix, Row, matrix, row

__all__ = ["Shown", "Wanted", "kernel", "namespaces", "overview", "worklist"]

_MOST = 1000


class Shown(NamedTuple):
    """One kernel on one device, and some of its scenarios."""

    context: Context
    total: int
    rows: list[Row]


class Wanted(NamedTuple):
    """One line of the worklist."""

    context: Context
    scenario: Scenario
    times: int
    first_seen: float
    last_seen: float


def namespaces(database: Database, who: Principal) -> list[str]:
    """The namespaces with records that one may read, the fullest first."""
    counts: dict[str, int] = {}
    with database.read() as connection:
        for namespace, _, _, count in contexts.per_device(connection):
            counts[namespace] = counts.get(namespace, 0) + count
    return sorted(
        (each for each in counts if who.may("read", each)), key=lambda each: (-counts[each], each)
    )


def overview(database: Database, who: Principal, namespace: str) -> Matrix:
    """Kernels by devices."""
    who.require("read", namespace)
    with database.read() as connection:
        found = contexts.counted(connection, namespace, _MOST)
    return matrix(
        Cell(digest, Context.model_validate_json(text), count) for digest, text, count in found
    )


def worklist(database: Database, who: Principal, namespace: str) -> list[Wanted]:
    """The misses, most wanted first."""
    who.require("read", namespace)
    with database.read() as connection:
        found = misses.listed(connection, namespace, None, _MOST)
    return [
        Wanted(
            Context.model_validate_json(each[0]), Scenario.model_validate_json(each[1]), *each[2:]
        )
        for each in found
    ]


def kernel(
    database: Database, who: Principal, namespace: str, digest: str, start: int, most: int
) -> Shown | None:
    """A context with the scenarios from one place on, or None."""
    who.require("read", namespace)
    with database.read() as connection:
        whole = records.whole(connection, namespace, digest)
    if whole is None:
        return None
    shown = [row(Record.model_validate_json(text)) for text in whole.records[start : start + most]]
    return Shown(Context.model_validate_json(whole.context), len(whole.records), shown)
