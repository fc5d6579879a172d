"""Answers to reads: rendered and compressed once for each revision of a context."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable

from sqlalchemy import Connection
from starlette.concurrency import run_in_threadpool

from ..services.transfer import render
from ..storage import contexts, records
from ..storage.contexts import ContextKey, Revision
from ..storage.database import Database
from .answer_cache import Answer, AnswerCache
from .long_polls import LongPolls
from .revisions import open_revisions
from .single_flight import SingleFlight

__all__ = ["RecordReader", "etag"]

_GZIP_LEVEL = 4
"""Level 9 takes six times as long for an answer smaller by a tenth."""
_PLAIN_BYTES = 1000
"""Length up to which a record is not worth compressing."""

_Render = Callable[[Connection, ContextKey], Answer | None]


class RecordReader:
    """Reads of records, with a cache of answers that each request revalidates.

    Attributes:
        used: The ids of contexts that were read since the last `flush`.
        fetches: How often machines that had nothing of a context fetched from it, by its id.
        long_polls: The requests that wait for a record.
    """

    def __init__(self, database: Database, cache_bytes: int) -> None:
        """Read from a database, keeping up to `cache_bytes` of compressed answers in memory."""
        self._database = database
        self._revisions = open_revisions(database)
        self._cache = AnswerCache(cache_bytes)
        self._rendering: SingleFlight[tuple[ContextKey, str, str], Answer | None] = SingleFlight()
        self.used: set[int] = set()
        self.fetches: Counter[int] = Counter()
        self.long_polls = LongPolls(self._revisions.get, self.record)

    async def revision(self, key: ContextKey) -> Revision | None:
        """Return the current revision of a context, or None if it has no records."""
        revision = await self._revisions.get(key)
        if revision is None or revision.records <= 0:
            return None
        self.used.add(revision.id)
        return revision

    async def record_set(self, key: ContextKey, revision: Revision) -> Answer:
        """Return all records at `revision` or a later one."""
        return await self._answer(key, revision, "records", _render_record_set)

    async def scenarios(self, key: ContextKey, revision: Revision) -> Answer:
        """Return the scenarios that have records, at `revision` or a later one."""
        return await self._answer(key, revision, "scenarios", _render_scenarios)

    async def record(self, key: ContextKey, revision: Revision, scenario: str) -> Answer:
        """Return one record by the digest of its scenario, at `revision` or a later one."""

        def render_one(connection: Connection, key: ContextKey) -> Answer | None:
            return _render_record(connection, key, scenario)

        return await self._answer(key, revision, scenario, render_one)

    async def _answer(
        self, key: ContextKey, revision: Revision, part: str, render_part: _Render
    ) -> Answer:
        cached = self._cache.get((*key, part), etag(revision))
        if cached is not None:
            return cached
        answer = await self._rendering.get(
            (key, part, revision.revision),
            lambda: run_in_threadpool(self._render, key, render_part),
        )
        if answer is None:  # the context was deleted since `revision` was read
            return Answer(etag(revision), None)
        self._cache.put((*key, part), answer)
        return answer

    def _render(self, key: ContextKey, render_part: _Render) -> Answer | None:
        with self._database.read() as connection:
            return render_part(connection, key)

    def flush(self) -> None:
        """Record in the database which contexts were read since the last call, and how often."""
        used, self.used = self.used, set()
        fetches, self.fetches = self.fetches, Counter()
        if used:
            with self._database.write() as connection:
                contexts.touch(connection, used)
                contexts.add_fetches(connection, fetches)

    async def close(self) -> None:
        """Close the connection for revisions."""
        await self._revisions.close()


def _render_record_set(connection: Connection, key: ContextKey) -> Answer | None:
    stored = records.load_record_set(connection, *key)
    return None if stored is None else _compressed(stored.revision, render(stored))


def _render_scenarios(connection: Connection, key: ContextKey) -> Answer | None:
    stored = records.load_scenario_texts(connection, *key)
    if stored is None:
        return None
    revision, texts = stored
    return _compressed(revision, f'{{"scenarios": [{", ".join(texts)}]}}')


def _render_record(connection: Connection, key: ContextKey, scenario: str) -> Answer | None:
    stored = records.load_text(connection, *key, scenario)
    if stored is None:
        return None
    revision, text = stored
    if text is None:
        return Answer(f'"{revision}"', None)
    has_winner = "winner" in json.loads(text)
    if len(text) <= _PLAIN_BYTES:
        return Answer(f'"{revision}"', text.encode(), is_gzipped=False, has_winner=has_winner)
    return _compressed(revision, text)._replace(has_winner=has_winner)


def _compressed(revision: str, text: str) -> Answer:
    return Answer(f'"{revision}"', gzip.compress(text.encode(), _GZIP_LEVEL, mtime=0))


def etag(revision: Revision) -> str:
    """Return the entity tag of a revision."""
    return f'"{revision.revision}"'
