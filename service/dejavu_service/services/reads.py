"""Reads of a context's records, of one of them, or of its scenarios, never older than the request.

Every process of a fleet reads records at its start, so these are by far the most frequent requests.
An answer is rendered and compressed once for each revision of a context, and kept in memory.
Replicas need not invalidate each other's caches: each request first asks the database for the
current revision, and an answer of another revision is not used.
"""

import gzip
from collections import Counter, OrderedDict
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from dejavu_cache.model.record import Record, RecordSet
from dejavu_cache.model.scenario import Scenario

from ..errors import NotFoundError
from ..problems import RESPONSES
from ..storage import contexts, record_texts
from ..storage.contexts import ContextKey
from ..storage.database import Database
from ..storage.lookups import RevisionLookups, SingleFlight
from .requests import (
    Call,
    ContextDigest,
    CurrentCall,
    Namespace,
    ScenarioDigest,
    json_response,
    responds_with,
)

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
_CACHING = ((b"vary", b"Accept-Encoding, Authorization"), (b"cache-control", b"private, no-cache"))

_PIECE = 64 * 1024
"""Bytes that are expanded at once for a client that accepts no gzip."""
_TOUCHED_AT_ONCE = 1000
"""Contexts in one transaction of `flush`, so that it keeps no writer waiting for long."""


@dataclass(frozen=True)
class Answer:
    """A part of a context at one revision.

    Attributes:
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
        lookups: The look-ups of current revisions.
        used: The contexts that were read since the last `flush`.
        fetches: How often machines that had nothing of a context fetched from it, by its id.
    """

    def __init__(self, database: Database) -> None:
        """Read from a database."""
        self._database = database
        self.lookups = RevisionLookups(database)
        self._answers: OrderedDict[AnswerKey, Answer] = OrderedDict()
        self._free_bytes = CACHE_BYTES
        self._rendering: SingleFlight[tuple[AnswerKey, str], Answer | None] = SingleFlight()
        self.used: set[ContextKey] = set()
        self.fetches: Counter[int] = Counter()

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


def _size(answer: Answer | None) -> int:
    return 0 if answer is None else _OVERHEAD + len(answer.body or b"")


_OR_UNCHANGED: dict[int | str, dict[str, Any]] = {
    304: {"description": "Unchanged since the `If-None-Match` that was sent"}
}


class ReadRoute(APIRoute):
    """A route that FastAPI describes, and that Starlette alone finds and runs.

    What FastAPI does for its routes takes longer than the read itself.
    """

    matches = Route.matches
    handle = Route.handle

    def __init__(self, *args: Any, **options: Any) -> None:
        """Take the arguments of FastAPI's route."""
        super().__init__(*args, **options)
        self.app = self._respond

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["route"] = self  # for metrics and logs
        server = scope["app"].state.server
        call = Call(scope["principal"], server, server.database, scope["caller"])
        response = await self.endpoint(**scope["path_params"], request=Request(scope), call=call)
        await response(scope, receive, send)


class ScenarioList(BaseModel):
    """The scenarios that have records in a context."""

    scenarios: list[Scenario]


router = APIRouter(prefix="/v1", route_class=ReadRoute, responses=RESPONSES)
_CONTEXT = "/{namespace:namespace}/contexts/{context:digest}"


@router.get(
    f"{_CONTEXT}/records/{{scenario:digest}}", responses=responds_with(Record) | _OR_UNCHANGED
)
async def read_record(
    namespace: Namespace,
    context: ContextDigest,
    scenario: ScenarioDigest,
    request: Request,
    call: CurrentCall,
) -> Response:
    """Return one record."""
    missing = "there is no record of this scenario"
    return await _read(call, request, namespace, context, scenario, missing)


@router.get(f"{_CONTEXT}/records", responses=responds_with(RecordSet) | _OR_UNCHANGED)
async def read_records(
    namespace: Namespace, context: ContextDigest, request: Request, call: CurrentCall
) -> Response:
    """Return all records of a context."""
    missing = "nothing is known of this context here: post records, or ask another namespace"
    return await _read(call, request, namespace, context, "records", missing)


@router.get(f"{_CONTEXT}/scenarios", responses=responds_with(ScenarioList) | _OR_UNCHANGED)
async def read_scenarios(
    namespace: Namespace, context: ContextDigest, request: Request, call: CurrentCall
) -> Response:
    """Return the scenarios that have records in a context; none if there is no such context."""
    return await _read(call, request, namespace, context, "scenarios", None)


async def _read(
    call: Call, request: Request, namespace: str, context: str, part: Part, missing: str | None
) -> Response:
    """Answer with a part of a context, or with 304 if the client has it.

    Raises:
        AccessDeniedError: The principal lacks the role `read`.
        NotFoundError: There is nothing, of which `missing` is said.
    """
    reader = call.server.reader
    call.principal.require("read", namespace)
    sent = dict(request.scope["headers"])
    key = namespace, context
    current = await reader.lookups.get(key)
    answer, copy = None, sent.get(b"if-none-match")
    if current is not None and current.records > 0:
        reader.used.add(key)
        if copy is not None and f'"{current.revision}"'.encode() in copy:
            return _respond(Answer(current.revision, None), b"")
        answer = reader.recall(key, part, current.revision)
        if answer is None:
            async with call.server.rendering.turn(call.caller):
                answer = await reader.read(key, part, current.revision)
    if answer is None or answer.body is None:
        if missing is not None:
            raise NotFoundError(missing)
        return json_response('{"scenarios": []}')
    if copy is None and current is not None and missing is not None:
        reader.fetches[current.id] += 1
    return _respond(answer, sent.get(b"accept-encoding", b""))


class _StoredResponse(Response):
    """A response whose headers are made: making them takes Starlette longer than sending them."""

    def __init__(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes = b"") -> None:
        self.status_code, self.raw_headers, self.body = status, headers, body
        self.background = None


def _respond(answer: Answer, accept_encoding: bytes) -> Response:
    """Send an answer, compressed if the client accepts that; one without a body is a 304."""
    headers = [*_CACHING, (b"etag", f'"{answer.revision}"'.encode())]
    body = answer.body
    if body is None:
        return _StoredResponse(304, headers)
    headers.append((b"content-type", b"application/json"))
    if answer.is_gzipped and b"gzip" not in accept_encoding:
        # In pieces: whole, a large one would fill the memory.
        expanded = gzip.GzipFile(fileobj=BytesIO(body))
        response = StreamingResponse(iter(partial(expanded.read, _PIECE), b""))
        # A gzip stream ends with the length of what it expands to.
        length = int.from_bytes(body[-4:], "little")
        response.raw_headers = [*headers, (b"content-length", b"%d" % length)]
        return response
    if answer.is_gzipped:
        headers.append((b"content-encoding", b"gzip"))
    headers.append((b"content-length", b"%d" % len(body)))
    return _StoredResponse(200, headers, body)
