"""Transactions that lock several contexts lock them in one order, so that none is deadlocked."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from dejavu_service.services import misses, quarantines, records, retention
from dejavu_service.services.access import ANYBODY
from dejavu_service.storage import contexts as storage
from dejavu_service.storage.database import Database
from dejavu_service.storage.tables import contexts
from dejavu_service.storage.tables import misses as miss_table
from fastapi import Response
from sqlalchemy import select, text, update
from support.service import call_on, context, record, record_set, scenario
from support.sweeping import wait_until

from dejavu_cache.model.worth import ONCE

Ids = Mapping[str, int]
EARLIER, LATER = sorted(
    (context(f"shop.kernel{number}") for number in range(2)), key=lambda stored: stored.digest
)
"""Two contexts by the order of locks, against that of their rows and ids."""

url = pytest.fixture(lambda postgres_url: postgres_url)


@pytest.fixture
def ids(database: Database) -> Ids:
    """Store the two contexts, not used for long, and return their ids by their digests."""
    for stored in (LATER, EARLIER):
        records.post_records("main", record_set(record(), of=stored), call_on(database))
    with database.write() as connection:
        connection.execute(update(contexts).values(used_at=0.0))
        query = select(contexts.c.digest, contexts.c.id)
        return {row.digest: row.id for row in connection.execute(query)}


def report_misses(database: Database, _: Ids) -> Callable[[], object]:
    reported = [(missed, scenario(2), ONCE) for missed in (LATER, EARLIER)]
    return partial(misses.count_misses, database, ANYBODY, "main", reported)


def note_use(database: Database, _: Ids) -> Callable[[], object]:
    def note() -> None:
        with database.write() as connection:
            storage.touch(connection, [("main", LATER.digest), ("main", EARLIER.digest)])

    return note


def note_fetches(database: Database, ids: Ids) -> Callable[[], object]:
    def note() -> None:
        with database.write() as connection:
            storage.add_fetches(connection, {ids[LATER.digest]: 1, ids[EARLIER.digest]: 1})

    return note


def undo_a_quarantine(database: Database, _: Ids) -> Callable[[], object]:
    wish = quarantines.QuarantineRequest(host="h200-1")
    taken = quarantines.create_quarantine("main", wish, call_on(database), Response())
    assert taken.id is not None
    return partial(quarantines.undo_quarantine, "main", taken.id, call_on(database))


@pytest.mark.parametrize(
    "prepare", [report_misses, note_use, note_fetches, undo_a_quarantine], ids=lambda p: p.__name__
)
def test_who_waits_for_a_context_holds_none_that_comes_behind_it(
    database: Database, ids: Ids, prepare: Callable[[Database, Ids], Callable[[], object]]
) -> None:
    lock_both = prepare(database, ids)
    with ThreadPoolExecutor(1) as pool:
        with database.write() as connection:
            assert storage.lock(connection, "main", EARLIER.digest)
            crossing = pool.submit(lock_both)
            wait_until(lambda: count_waiting(database) == 1)
            later = select(contexts.c.id).where(contexts.c.id == ids[LATER.digest])
            connection.execute(later.with_for_update(nowait=True))
        crossing.result(240)


@pytest.mark.usefixtures("ids")
def test_who_waited_goes_on_whatever_isolation_is_the_default(postgres_url: str) -> None:
    opened = Database(postgres_url)
    with opened.write() as connection:
        name = connection.engine.url.database
        default = "SET default_transaction_isolation = 'repeatable read'"
        connection.execute(text(f"ALTER DATABASE {name} {default}"))
    opened.close()
    with ThreadPoolExecutor(1) as pool:
        with opened.write() as connection:
            locked = storage.lock(connection, "main", EARLIER.digest)
            assert locked is not None
            sent = record_set(record(9), of=EARLIER)
            waiting = pool.submit(records.post_records, "main", sent, call_on(opened))
            wait_until(lambda: count_waiting(opened) == 1)
            storage.bump_revision(connection, locked.id)
        assert waiting.result(240).records == 1
    opened.close()


@pytest.mark.usefixtures("ids")
def test_who_reads_sees_one_moment(database: Database) -> None:
    times = select(contexts.c.used_at).distinct()
    with database.read() as reader:
        before = reader.scalars(times).all()
        with database.write() as connection:
            connection.execute(update(contexts).values(used_at=1.0))
        assert reader.scalars(times).all() == before


def test_pruning_waits_for_nobody(database: Database) -> None:
    reported = [(missed, scenario(2), ONCE) for missed in (EARLIER, LATER)]
    misses.count_misses(database, ANYBODY, "main", reported)
    records.post_records("main", record_set(of=context("shop.kept")), call_on(database))
    misses.count_misses(database, ANYBODY, "main", [(context("shop.idle"), scenario(3), ONCE)])
    with database.write() as connection:
        connection.execute(update(contexts).where(contexts.c.records == 0).values(used_at=0.0))
        connection.execute(update(miss_table).values(last_seen=0.0))
    with database.write() as connection:
        held = storage.ensure(connection, "main", [EARLIER, LATER], hold=True)
        row = select(miss_table.c.context_id).where(miss_table.c.context_id == held[LATER.digest])
        connection.execute(row.with_for_update())
        assert retention.prune(database, 90, 30) == retention.Pruned(0, 1, 2)
    assert retention.prune(database, 90, 30) == retention.Pruned(0, 2, 1)


def test_writers_of_sqlite_come_one_after_the_other(sqlite_url: str) -> None:
    """SQLite itself would let one write again and again, and another one wait for it."""
    opened, came = Database(sqlite_url), []

    def write_twice(number: int) -> None:
        for _ in range(2):
            with opened.write():
                came.append(number)

    with ThreadPoolExecutor(4) as pool:
        with opened.write():
            writing = pool.map(write_twice, range(4))
            wait_until(lambda: len(opened._writers) == 5)
        list(writing)
    opened.close()
    assert set(came[:4]) == set(range(4))


def count_waiting(database: Database) -> int:
    with database.read() as connection:
        waiting = text(
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return int(connection.execute(waiting).scalar_one())
