"""Bulk reads: a context's answer is made once for each revision, kept compressed, and checked at every request."""

from __future__ import annotations

import asyncio
import gzip
from collections import OrderedDict
from typing import NamedTuple

from starlette.concurrency import run_in_threadpool

from dejavu_cache.model.record import Record

from ..services.transfer import render
from ..storage import contexts, records
from ..storage.contexts import Key, Revision
from ..storage.database import Database
from .revisions import open_revisions
from .single_flight import Shared

__all__ = ["Answer", "Reads", "etag"]

_LEVEL = 4
"""Of gzip: level 9 takes six times as long for a tenth less."""
_POLL = 0.15
"""Seconds between two looks of a request that waits for a record."""


class Answer(NamedTuple):
    """All records of a context at one revision."""

    etag: str
    gzipped: bytes


class Reads:
    """What readers are answered with, in a cache that is bounded in bytes and never trusted unasked."""

    def __init__(self, database: Database, cache_bytes: int) -> None:
        self._database = database
        self._revisions = open_revisions(database)
        self._kept: OrderedDict[Key, Answer] = OrderedDict()
        self._room = cache_bytes
        self._making: Shared[tuple[Key, str], Answer | None] = Shared()
        self.used: set[int] = set()
        """The ids of contexts that were read since the last flush."""

    async def revision(self, key: Key) -> Revision | None:
        """The context's revision as it is now, or None without records."""
        found = await self._revisions.get(key)
        if found is None or found.records <= 0:
            return None
        self.used.add(found.id)
        return found

    async def answer(self, key: Key, revision: Revision) -> Answer | None:
        """The answer at this revision or a later one; None if the records have gone meanwhile."""
        kept = self._kept.get(key)
        if kept is not None and kept.etag == etag(revision):
            self._kept.move_to_end(key)
            return kept
        # The first of many that come at once makes it for all.
        answer = await self._making.get(
            (key, revision.revision), lambda: run_in_threadpool(self._make, key)
        )
        if answer is not None:
            self._keep(key, answer)
        return answer

    def _make(self, key: Key) -> Answer | None:
        with self._database.read() as connection:
            whole = records.whole(connection, *key)
        if whole is None:
            return None
        return Answer(f'"{whole.revision}"', gzip.compress(render(whole).encode(), _LEVEL, mtime=0))

    def _keep(self, key: Key, answer: Answer) -> None:
        replaced = self._kept.pop(key, None)
        self._room += len(replaced.gzipped) if replaced else 0
        self._kept[key] = answer
        self._room -= len(answer.gzipped)
        while self._room < 0:
            _, oldest = self._kept.popitem(last=False)
            self._room += len(oldest.gzipped)

    async def one(self, key: Key, scenario: str, wait: float = 0.0) -> str | None:
        """The text of a record, or None; with `wait`, once it has a winner, or None after so many seconds."""
        if wait <= 0:
            return await run_in_threadpool(self._one, key, scenario)
        return await self._wait(key, scenario, wait)

    async def _wait(self, key: Key, scenario: str, seconds: float) -> str | None:
        loop = asyncio.get_running_loop()
        deadline, seen = loop.time() + seconds, ""
        while True:
            found = await self._revisions.get(key)
            if found is not None and found.revision != seen:
                seen = found.revision
                text = await run_in_threadpool(self._one, key, scenario)
                if text is not None and _has_winner(text):
                    return text
            if loop.time() >= deadline:
                return None
            await asyncio.sleep(min(_POLL, max(deadline - loop.time(), 0)))

    def _one(self, key: Key, scenario: str) -> str | None:
        with self._database.read() as connection:
            return records.one(connection, *key, scenario)

    def flush(self) -> None:
        """Writes down which contexts were read."""
        used, self.used = self.used, set()
        if used:
            with self._database.write() as connection:
                contexts.touch(connection, used)

    async def close(self) -> None:
        """Lets go of what is held."""
        await self._revisions.close()


def etag(revision: Revision) -> str:
    """The entity tag of a revision."""
    return f'"{revision.revision}"'


def _has_winner(text: str) -> bool:
    return Record.model_validate_json(text).winner is not None
