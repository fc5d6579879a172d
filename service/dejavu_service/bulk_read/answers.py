"""Answers to reads: rendered and compressed once for each revision of a context."""

from __future__ import annotations

import asyncio
import gzip
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from sqlalchemy import Connection
from starlette.concurrency import run_in_threadpool

from ..services import layers
from ..services.read_through import RecordView
from ..services.transfer import render
from ..storage import contexts
from ..storage.contexts import ContextKey, Revision
from ..storage.database import Database
from .answer_cache import Answer, AnswerCache
from .key_lookups import StoredText, open_record_texts, open_revisions
from .single_flight import SingleFlight

__all__ = ["RecordReader", "etag"]

_GZIP_LEVEL = 4
"""Level 9 takes six times as long for an answer smaller by a tenth."""
_PLAIN_LENGTH = 1000
"""Length up to which a record is not worth compressing."""
_THREAD_LENGTH = 64 * 1024
"""Length from which compressing a record takes a thread, and not a millisecond of all requests."""

_RENDERED_AT_ONCE = 4
"""Contexts, and large records, that are rendered at a time, each of which may take much memory.
More threads that compress would also leave the event loop no time."""
_TOUCHED_AT_ONCE = 1000
"""Contexts in one transaction of `flush`, so that it keeps no writer waiting for long."""

_RenderAll = Callable[[Connection, RecordView], Answer | None]


class RecordReader:
    """Reads of records, with a cache of answers that each request revalidates.

    Attributes:
        used: The contexts that were read since the last `flush`.
        fetches: How often machines that had nothing of a context fetched from it, by its id.
        render_turns: The turns to load many records, which may take much memory.
    """

    def __init__(self, database: Database, cache_bytes: int) -> None:
        """Read from a database, keeping up to `cache_bytes` of compressed answers in memory."""
        self._database = database
        self._revisions = open_revisions(database)
        self._texts = open_record_texts(database)
        self._cache = AnswerCache(cache_bytes)
        self.render_turns = asyncio.Semaphore(_RENDERED_AT_ONCE)
        self._thread_turns = asyncio.Semaphore(_RENDERED_AT_ONCE)
        self._rendering: SingleFlight[tuple[RecordView, str, str], Answer | None] = SingleFlight()
        self.used: set[ContextKey] = set()
        self.fetches: Counter[int] = Counter()

    async def revision(self, view: RecordView) -> Revision | None:
        """Return the current revision of a view, or None if it has no records."""
        revision = await self._current(view)
        return None if revision is None or revision.records <= 0 else revision

    async def _current(self, view: RecordView) -> Revision | None:
        """Return the revision of a view, joined from those of its namespaces; None without any."""
        revisions = [
            await self._revisions.get((namespace, view.context)) for namespace in view.namespaces
        ]
        present = [revision for revision in revisions if revision is not None]
        for namespace, revision in zip(view.namespaces, revisions, strict=True):
            if revision is not None and revision.records > 0:
                self.note_use((namespace, view.context))
        if not present or view.beneath is None:
            return present[0] if present else None
        # A context without records counts as none, as it does where the answer is rendered.
        joined = layers.join_revisions(
            [revision.revision if revision and revision.records else None for revision in revisions]
        )
        return Revision(present[0].id, joined, sum(revision.records for revision in present))

    async def record_set(self, view: RecordView, revision: Revision) -> Answer:
        """Return all records at `revision` or a later one."""
        render = partial(self._render_all, view, _render_record_set)
        return await self._answer(view, revision, "records", render)

    async def scenarios(self, view: RecordView, revision: Revision) -> Answer:
        """Return the scenarios that have records, at `revision` or a later one."""
        render = partial(self._render_all, view, _render_scenarios)
        return await self._answer(view, revision, "scenarios", render)

    async def record(self, view: RecordView, revision: Revision, scenario: str) -> Answer:
        """Return one record by the digest of its scenario, at `revision` or a later one."""
        render = partial(self._render_record, view, scenario)
        return await self._answer(view, revision, scenario, render)

    async def _answer(
        self,
        view: RecordView,
        revision: Revision,
        part: str,
        render: Callable[[], Coroutine[Any, Any, Answer | None]],
    ) -> Answer:
        cached = self._cache.get((*_names(view), part), etag(revision))
        if cached is not None:
            return cached
        answer = await self._rendering.get((view, part, revision.revision), render)
        if answer is None:  # the context was deleted since `revision` was read
            return Answer(etag(revision), None)
        self._cache.put((*_names(view), part), answer)
        return answer

    async def _render_all(self, view: RecordView, render: _RenderAll) -> Answer | None:
        def read_and_render() -> Answer | None:
            with self._database.read() as connection:
                return render(connection, view)

        async with self.render_turns:
            return await run_in_threadpool(read_and_render)

    async def _render_record(self, view: RecordView, scenario: str) -> Answer | None:
        stored = await self._load_layers(view, scenario)
        texts = [layer.text for layer in stored if layer is not None and layer.text is not None]
        if len(texts) <= 1 and sum(map(len, texts)) <= _THREAD_LENGTH:
            return _render_record(stored)
        stored.clear()  # all that wait for a turn would keep their texts in memory
        texts.clear()
        async with self._thread_turns:
            stored = await self._load_layers(view, scenario)
            return await run_in_threadpool(_render_record, stored)

    async def _load_layers(self, view: RecordView, scenario: str) -> list[StoredText | None]:
        return [
            await self._texts.get((namespace, view.context, scenario))
            for namespace in view.namespaces
        ]

    def note_use(self, key: ContextKey) -> None:
        """Note that a context was read, for the next `flush`."""
        self.used.add(key)

    def flush(self) -> None:
        """Record in the database which contexts were read since the last call, and how often."""
        used, self.used = self.used, set()
        fetches, self.fetches = self.fetches, Counter()
        try:
            keys = sorted(used)
            for start in range(0, len(keys), _TOUCHED_AT_ONCE):
                with self._database.write() as connection:
                    contexts.touch(connection, keys[start : start + _TOUCHED_AT_ONCE])
            if fetches:
                with self._database.write() as connection:
                    contexts.add_fetches(connection, fetches)
        except BaseException:
            self.used |= used
            self.fetches += fetches
            raise

    async def close(self) -> None:
        """Close the connections for look-ups."""
        await self._revisions.close()
        await self._texts.close()


def _names(view: RecordView) -> tuple[str, str]:
    """Return a text of the namespaces, none of which has a `>` in its name, and the context."""
    return ">".join(view.namespaces), view.context


def _render_record_set(connection: Connection, view: RecordView) -> Answer | None:
    stored = layers.load_record_set(connection, view)
    if stored is None:
        return None
    return _compress(stored.revision, render(stored.context, stored.records))


def _render_scenarios(connection: Connection, view: RecordView) -> Answer | None:
    stored = layers.load_scenario_texts(connection, view)
    if stored is None:
        return None
    revision, texts = stored
    return _compress(revision, f'{{"scenarios": [{", ".join(texts)}]}}')


def _render_record(stored: Sequence[StoredText | None]) -> Answer | None:
    layered = layers.join_texts(stored)
    if layered is None:
        return None
    revision, text = layered
    if text is None:
        return Answer(f'"{revision}"', None)
    if len(text) <= _PLAIN_LENGTH:
        return Answer(f'"{revision}"', text.encode(), is_gzipped=False)
    return _compress(revision, text)


def _compress(revision: str, text: str) -> Answer:
    body = gzip.compress(text.encode(), _GZIP_LEVEL, mtime=0)
    return Answer(f'"{revision}"', body)


def etag(revision: Revision) -> str:
    """Return the entity tag of a revision."""
    return f'"{revision.revision}"'
