"""Look-ups by key; those on Postgres are shared, never stale, and back after a failure."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psycopg
import pytest
from dejavu_service.bulk_read import grouped_queries
from dejavu_service.bulk_read.key_lookups import open_record_texts, open_revisions
from dejavu_service.services.access import ANYBODY
from dejavu_service.services.records import post_records
from dejavu_service.storage import contexts
from dejavu_service.storage.database import Database
from sqlalchemy import text
from support.records import record
from support.service import context, record_set

from dejavu_cache.model.scenario import Scenario, canonical_json

KEY = ("main", context().digest)


@pytest.fixture
def database(postgres_url: str) -> Iterator[Database]:
    made = Database(postgres_url)
    yield made
    made.close()


@pytest.fixture
def context_id(database: Database) -> int:
    with database.write() as connection:
        identity = contexts.ensure(connection, "main", [context()])[context().digest]
        contexts.bump_revision(connection, identity, added=1)
    return identity


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the number of keys of each query."""
    asked: list[int] = []
    ask = grouped_queries._QueryConnection.query

    async def query_and_count(line, statement, keys):  # type: ignore[no-untyped-def]
        asked.append(len(keys))
        return await ask(line, statement, keys)

    monkeypatch.setattr(grouped_queries._QueryConnection, "query", query_and_count)
    return asked


def test_those_who_ask_at_once_share_a_question(
    database: Database, context_id: int, questions: list[int]
) -> None:
    async def ask() -> None:
        grouped = open_revisions(database)
        unknown = ("main", "no such context")
        *contexts, missing = await asyncio.gather(
            *(grouped.get(KEY) for _ in range(50)), grouped.get(unknown)
        )
        await grouped.close()
        assert missing is None
        assert {entry.id for entry in contexts if entry} == {context_id}
        assert None not in contexts

    asyncio.run(ask())
    assert questions == [2]


def test_what_was_written_while_a_question_was_out_is_in_the_answer_to_who_comes_then(
    database: Database, context_id: int
) -> None:
    async def ask() -> None:
        grouped = open_revisions(database)
        for _ in range(20):
            early = asyncio.create_task(grouped.get(KEY))
            await asyncio.sleep(0.001)
            with (
                database.write() as connection
            ):  # the event loop stands: the first answer has not been taken
                contexts.bump_revision(connection, context_id, added=1)
                written = connection.execute(text("SELECT records FROM contexts")).scalar()
            late = await grouped.get(KEY)
            assert late is not None
            assert late.records == written
            await early
        await grouped.close()

    asyncio.run(ask())


def test_a_connection_that_died_is_replaced_unnoticed(database: Database, context_id: int) -> None:
    async def ask() -> None:
        grouped = open_revisions(database)
        for pause in (0.0, 0.2):  # found out by the question, and before it
            before = await grouped.get(KEY)
            with database.write() as connection:
                connection.execute(
                    text(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                        "WHERE datname = current_database() "
                        "AND query LIKE '%unnest($1%' AND pid <> pg_backend_pid()"
                    )
                )
            await asyncio.sleep(pause)
            assert await grouped.get(KEY) == before
        await grouped.close()

    asyncio.run(ask())


def test_a_look_up_has_its_own_time_whatever_the_database_gives_each_statement(
    postgres_url: str, database: Database, context_id: int
) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        name = admin.info.dbname
        admin.execute(f"ALTER DATABASE {name} SET statement_timeout = '20ms'")

    async def ask() -> None:
        grouped = open_revisions(database)
        for _ in range(2):
            with database.write() as connection:
                connection.execute(text("LOCK TABLE contexts IN ACCESS EXCLUSIVE MODE"))
                asked = asyncio.create_task(grouped.get(KEY))
                await asyncio.sleep(0.2)
            found = await asked
            assert found is not None
            assert found.id == context_id
        assert await grouped.get(KEY) == found
        await grouped.close()

    asyncio.run(ask())


def test_no_answer_in_time_fails_all_who_wait_and_the_next_are_answered(
    database: Database, context_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask() -> None:
        grouped = open_revisions(database)
        await grouped.get(KEY)
        with database.write() as connection, monkeypatch.context() as hurried:
            hurried.setattr(grouped_queries, "_TIMEOUT", 0.3)
            connection.execute(text("LOCK TABLE contexts IN ACCESS EXCLUSIVE MODE"))
            failed = await asyncio.gather(
                *(grouped.get(KEY) for _ in range(3)), return_exceptions=True
            )
        assert [type(error) for error in failed] == [grouped_queries._QueryTimeoutError] * 3
        assert isinstance(failed[0], psycopg.Error)
        assert await grouped.get(KEY) is not None
        await grouped.close()

    asyncio.run(ask())


def test_who_goes_away_takes_nothing_from_the_others(database: Database, context_id: int) -> None:
    async def ask() -> None:
        grouped = open_revisions(database)
        gone, stays = asyncio.create_task(grouped.get(KEY)), asyncio.create_task(grouped.get(KEY))
        await asyncio.sleep(0)
        gone.cancel()
        assert await stays is not None
        await grouped.close()

    asyncio.run(ask())


def test_keys_are_quoted(database: Database, context_id: int) -> None:
    odd = ['"', "\\", ",", "{}", "NULL", 'a\\"b', "é", ""]

    async def ask() -> None:
        grouped = open_revisions(database)
        assert await asyncio.gather(*(grouped.get((key, key)) for key in odd)) == [None] * len(odd)
        assert await grouped.get(KEY) is not None
        await grouped.close()

    asyncio.run(ask())


def test_records_are_looked_up_by_key(url: str) -> None:
    database = Database(url)
    odd = record(2).model_copy(update={"scenario": Scenario(args={"M": 'é \\ "x" \U0001f600'})})
    post_records(database, ANYBODY, "main", record_set(record(1), odd), 50)
    with database.read() as connection:
        revision = contexts.load_revisions(connection, "main", [context().digest])[context().digest]

    async def ask() -> None:
        texts = open_record_texts(database)
        stored, unusual, missing, unknown = await asyncio.gather(
            *(
                texts.get(("main", digest, scenario.digest))
                for digest, scenario in (
                    (context().digest, record(1).scenario),
                    (context().digest, odd.scenario),
                    (context().digest, record(3).scenario),
                    ("0" * 24, record(1).scenario),
                )
            )
        )
        await texts.close()
        assert stored == (revision, canonical_json(record(1)))
        assert unusual == (revision, canonical_json(odd))
        assert missing == (revision, None)
        assert unknown is None

    asyncio.run(ask())
    database.close()
