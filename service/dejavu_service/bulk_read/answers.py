"""Answers to bulk reads: rendered and compressed once for each revision of a context."""

from __future__ import annotations

import asyncio
import gzip
from collections import OrderedDict
from typing import NamedTuple

from starlette.concurrency import run_in_threadpool

from dejavu_cache.model.record import Record

from ..services.transfer import render
from ..storage import contexts, records
from ..storage.contexts import ContextKey, Revision
from ..storage.database import Database
from .revisions import open_revisions
from .single_flight import SingleFlight

__all__ = ["Answer", "RecordReader", "etag"]

_GZIP_LEVEL = 4
"""Level 9 takes six times as long for an answer smaller by a tenth."""
_POLL_SECONDS = 0.15
"""Seconds between two checks of a request that waits for a record."""


class Answer(NamedTuple):
    """All records of a context at one revision, as compressed JSON."""

    etag: str
    gzipped: bytes


class RecordReader:
    """Reads of records, with a cache of answers that each request revalidates.

    Attributes:
        used: The ids of contexts that were read since the last `flush`.
    """

    def __init__(self, database: Database, cache_bytes: int) -> None:
        """Read from a database, keeping up to `cache_bytes` of compressed answers in memory."""
        self._database = database
        self._revisions = open_revisions(database)
        self._answers: OrderedDict[ContextKey, Answer] = OrderedDict()
        self._free_bytes = cache_bytes
        self._rendering: SingleFlight[tuple[ContextKey, str], Answer | None] = SingleFlight()
        self.used: set[int] = set()

    async def revision(self, key: ContextKey) -> Revision | None:
        """Return the current revision of a context, or None if it has no records."""
        revision = await self._revisions.get(key)
        if revision is None or revision.records <= 0:
            return None
        self.used.add(revision.id)
        return revision

    async def answer(self, key: ContextKey, revision: Revision) -> Answer | None:
        """Return the answer at `revision` or a later one.

        Returns:
            None if the records were deleted since `revision` was read.
        """
        cached = self._answers.get(key)
        if cached is not None and cached.etag == etag(revision):
            self._answers.move_to_end(key)
            return cached
        answer = await self._rendering.get(
            (key, revision.revision), lambda: run_in_threadpool(self._render, key)
        )
        if answer is not None:
            self._cache(key, answer)
        return answer

    def _render(self, key: ContextKey) -> Answer | None:
        with self._database.read() as connection:
            stored = records.load_record_set(connection, *key)
        if stored is None:
            return None
        gzipped = gzip.compress(render(stored).encode(), _GZIP_LEVEL, mtime=0)
        return Answer(f'"{stored.revision}"', gzipped)

    def _cache(self, key: ContextKey, answer: Answer) -> None:
        replaced = self._answers.pop(key, None)
        self._free_bytes += len(replaced.gzipped) if replaced else 0
        self._answers[key] = answer
        self._free_bytes -= len(answer.gzipped)
        while self._free_bytes < 0:
            _, oldest = self._answers.popitem(last=False)
            self._free_bytes += len(oldest.gzipped)

    async def record(self, key: ContextKey, scenario: str, wait: float = 0.0) -> str | None:
        """Return one record as JSON.

        Args:
            key: The namespace and the context.
            scenario: The digest of the scenario.
            wait: Seconds to wait until the record has a winner; 0 returns any record at once.

        Returns:
            None if there is no record, or none with a winner when the time is up.
        """
        if wait <= 0:
            return await run_in_threadpool(self._load_text, key, scenario)
        return await self._wait_for_winner(key, scenario, wait)

    async def _wait_for_winner(self, key: ContextKey, scenario: str, seconds: float) -> str | None:
        loop = asyncio.get_running_loop()
        deadline, seen = loop.time() + seconds, ""
        while True:
            revision = await self._revisions.get(key)
            if revision is not None and revision.revision != seen:
                seen = revision.revision
                text = await run_in_threadpool(self._load_text, key, scenario)
                if text is not None and Record.model_validate_json(text).winner is not None:
                    return text
            if loop.time() >= deadline:
                return None
            await asyncio.sleep(min(_POLL_SECONDS, max(deadline - loop.time(), 0)))

    def _load_text(self, key: ContextKey, scenario: str) -> str | None:
        with self._database.read() as connection:
            return records.load_text(connection, *key, scenario)

    def flush(self) -> None:
        """Record in the database which contexts were read since the last call."""
        used, self.used = self.used, set()
        if used:
            with self._database.write() as connection:
                contexts.touch(connection, used)

    async def close(self) -> None:
        """Close the connection for revisions."""
        await self._revisions.close()


def etag(revision: Revision) -> str:
    """Return the entity tag of a revision."""
    return f'"{revision.revision}"'
