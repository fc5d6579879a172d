"""Reads of a context's records, of one of them, or of its scenarios, never older than the request.

Every process of a fleet reads records at its start, so these are by far the most frequent requests.
An answer is rendered and compressed once for each revision of a context, and kept in memory.
Replicas need not invalidate each other's caches: each request first asks the database for the
current revision, and an answer of another revision is not used.
"""

from __future__ import annotations

import gzip
from collections import Counter, OrderedDict
from dataclasses import dataclass

from anyio.to_thread import run_sync

from ..storage import contexts, record_texts
from ..storage.contexts import ContextKey, Revision
from ..storage.database import Database
from ..storage.lookups import RevisionLookups
from .single_flight import SingleFlight

__all__ = ["Answer", "AnswerKey", "Part", "RecordReader"]

Part = str
"""What is read of a context: all records, its scenarios, or the record of a scenario's digest."""
AnswerKey = tuple[ContextKey, str]

CACHE_BYTES = 64 * 2**20
"""Bytes of answers kept in memory: some 5,000 of 100 records, compressed."""
_GZIP_LEVEL = 4
"""Level 9 takes six times as long for an answer smaller by a tenth."""
_PLAIN_LENGTH = 1000
"""Length up to which a text is not worth compressing."""
_OVERHEAD = 400
"""Bytes that a cached answer takes besides its body, roughly."""
_TOUCHED_AT_ONCE = 1000
"""Contexts in one transaction of `flush`, so that it keeps no writer waiting for long."""


@dataclass(frozen=True)
class Answer:
    """A part of a context at one revision.

    Attributes:
        revision: The revision.
        body: JSON; None if the context lacks this part.
        is_gzipped: Whether the body is compressed.
    """

    revision: str
    body: bytes | None
    is_gzipped: bool = False


class RecordReader:
    """Reads of records, with a cache of answers that each request revalidates.

    Answers that were not asked for longest make room for new ones.

    Attributes:
        used: The contexts that were read since the last `flush`.
        fetches: How often machines that had nothing of a context fetched from it, by its id.
    """

    def __init__(self, database: Database) -> None:
        """Read from a database."""
        self._database = database
        self._lookups = RevisionLookups(database)
        self._answers: OrderedDict[AnswerKey, Answer] = OrderedDict()
        self._free_bytes = CACHE_BYTES
        self._rendering: SingleFlight[tuple[AnswerKey, str], Answer | None] = SingleFlight()
        self.used: set[ContextKey] = set()
        self.fetches: Counter[int] = Counter()

    async def revision(self, context: ContextKey) -> Revision | None:
        """Return the current revision of a context, or None if it has no records."""
        found = await self._lookups.get(context)
        if found is None or found.records <= 0:
            return None
        self.used.add(context)
        return found

    def recall(self, context: ContextKey, part: Part, revision: str) -> Answer | None:
        """Return a part of a context at `revision`, if it is kept in memory."""
        answer = self._answers.get((context, part))
        if answer is None or answer.revision != revision:
            return None
        self._answers.move_to_end((context, part))
        return answer

    async def read(self, context: ContextKey, part: Part, revision: str) -> Answer | None:
        """Return a part of a context at `revision` or a later one; None if the context is gone."""
        # Requests that arrive together share the work.
        return self.recall(context, part, revision) or await self._rendering.get(
            ((context, part), revision), lambda: self._render((context, part))
        )

    async def _render(self, key: AnswerKey) -> Answer | None:
        answer = await run_sync(self._load, *key)
        if answer is not None:
            self._free_bytes += _size(self._answers.pop(key, None)) - _size(answer)
            self._answers[key] = answer
            while self._free_bytes < 0:
                self._free_bytes += _size(self._answers.popitem(last=False)[1])
        return answer

    def _load(self, context: ContextKey, part: Part) -> Answer | None:
        with self._database.read() as connection:
            loaded: tuple[str, str | None] | None
            if part == "records":
                loaded = record_texts.load_records(connection, *context)
            elif part == "scenarios":
                loaded = record_texts.load_scenarios(connection, *context)
            else:
                loaded = record_texts.load_text(connection, *context, part)
        if loaded is None:
            return None
        revision, text = loaded
        if text is None or len(text) <= _PLAIN_LENGTH:
            return Answer(revision, None if text is None else text.encode())
        return Answer(revision, gzip.compress(text.encode(), _GZIP_LEVEL, mtime=0), True)

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
        """Close the connection for look-ups."""
        await self._lookups.close()


def _size(answer: Answer | None) -> int:
    return 0 if answer is None else _OVERHEAD + len(answer.body or b"")
