"""Look-ups of revisions are shared, never stale, and back after a failure."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from dejavu_service.storage import contexts, lookups
from dejavu_service.storage.contexts import ContextKey
from dejavu_service.storage.database import Database
from dejavu_service.storage.lookups import RevisionLookups
from psycopg.errors import QueryCanceled
from sqlalchemy import text
from support.service import context

pytestmark = pytest.mark.anyio
KEY = ("main", context().digest)
url = pytest.fixture(lambda postgres_url: postgres_url)


@pytest.fixture
def context_id(database: Database) -> int:
    with database.write() as connection:
        identity = contexts.ensure(connection, "main", [context()])[context().digest]
        contexts.bump_revision(connection, identity, added=1)
    return identity


@pytest.fixture
async def line(database: Database, context_id: int) -> AsyncIterator[RevisionLookups]:
    """Yield the look-ups of a database that has the context."""
    made = RevisionLookups(database)
    yield made
    await made.close()


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the number of keys of each query."""
    asked: list[int] = []
    ask = RevisionLookups._ask_postgres

    async def ask_and_count(line: RevisionLookups, keys: Sequence[ContextKey]) -> Any:
        asked.append(len(keys))
        return await ask(line, keys)

    monkeypatch.setattr(RevisionLookups, "_ask_postgres", ask_and_count)
    return asked


async def test_those_who_ask_at_once_share_a_question(
    line: RevisionLookups, context_id: int, questions: list[int]
) -> None:
    unknown = ("main", "no such context")
    *found, missing = await asyncio.gather(*(line.get(KEY) for _ in range(50)), line.get(unknown))
    assert missing is None
    assert {entry.id for entry in found if entry} == {context_id}
    assert None not in found
    assert questions == [2]


async def test_what_was_written_while_a_question_was_out_is_in_the_answer_to_who_comes_then(
    database: Database, context_id: int, line: RevisionLookups
) -> None:
    for _ in range(20):
        early = asyncio.create_task(line.get(KEY))
        await asyncio.sleep(0.001)
        # The event loop stands meanwhile: the first answer has not been taken.
        with database.write() as connection:
            contexts.bump_revision(connection, context_id, added=1)
            written = connection.execute(text("SELECT records FROM contexts")).scalar()
        late = await line.get(KEY)
        assert late is not None
        assert late.records == written
        await early


async def test_a_connection_that_died_is_replaced_unnoticed(
    database: Database, line: RevisionLookups
) -> None:
    for pause in (0.0, 0.2):  # found out by the question, and before it
        before = await line.get(KEY)
        with database.write() as connection:
            connection.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() "
                    "AND query LIKE '%(namespace, digest) IN%' AND pid <> pg_backend_pid()"
                )
            )
        await asyncio.sleep(pause)
        assert await line.get(KEY) == before


async def test_a_table_that_stays_locked_is_not_waited_for(
    database: Database, line: RevisionLookups, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookups, "_LONGEST_QUERY", 0.2)
    with database.write() as connection:
        connection.execute(text("LOCK TABLE contexts IN ACCESS EXCLUSIVE MODE"))
        with pytest.raises(QueryCanceled):
            await line.get(KEY)
    assert await line.get(KEY) is not None


async def test_who_goes_away_takes_nothing_from_the_others(line: RevisionLookups) -> None:
    gone, stays = (asyncio.create_task(line.get(KEY)) for _ in range(2))
    await asyncio.sleep(0)
    gone.cancel()
    assert await stays is not None


async def test_what_sqlite_said_holds_for_no_callback_that_comes_later(sqlite_url: str) -> None:
    """A request that is read from its connection afterwards is such a callback."""
    database = Database(sqlite_url)
    lookups = RevisionLookups(database)
    assert await lookups.get(KEY) is None
    with database.write() as connection:
        identity = contexts.ensure(connection, "main", [context()])[context().digest]
        contexts.bump_revision(connection, identity, added=1)
    assert await lookups.get(KEY) is None, "the same callback asks once"
    await asyncio.sleep(0)
    revision = await lookups.get(KEY)
    assert revision is not None
    assert revision.records == 1
    await lookups.close()
    database.close()
