"""Export and import of record sets, and promotion of records from one namespace to another."""

import math
import re
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import IO, Annotated, Any

from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection, select
from starlette.concurrency import iterate_in_threadpool, run_in_threadpool
from starlette.types import Receive, Scope, Send

from dejavu_cache.model.record import RecordSet, divide
from dejavu_cache.model.scenario import Context
from dejavu_cache.system.notices import counted

from .. import errors
from ..storage import contexts, merging, record_texts, records
from ..storage.database import Database
from ..storage.merging import StoredRecord
from ..storage.tables import contexts as stored
from ..storage.tables import parts
from .access import NAMESPACE, Principal
from .log import write_log
from .records import check_record_set, merge_record_set
from .requests import (
    PRINTABLE,
    Call,
    CurrentCall,
    KernelName,
    Namespace,
    accepts,
    body_chunks,
    validate_json,
    versioned_router,
)

router = versioned_router()

_NDJSON = "application/x-ndjson"
_MAX_IN_MEMORY = 4 * 2**20
"""Bytes of an import that are kept in memory; a larger one goes to a temporary file."""

_MOST_RECORDS, _MOST_BYTES = 1000, 4 * 2**20
"""Limits of a line of an export, unless one record is longer."""

_MOST_NAMES = 100
"""Kernels and hosts that the log names of an import."""
_LONGEST_LINE = merging.MOST_RECORD_CHARACTERS + 2**20
"""Bytes of a line of an import: a record as large as one may become, and its context."""
_PROMOTED_AT_ONCE = 100
"""Records that are promoted at a time."""
_TOKEN_ID = re.compile(r" \([0-9a-f]{16}\)$")
"""What a sender's name ends with, since names of tokens may be equal."""


class Imported(BaseModel):
    """Counts of an import."""

    sets: int = 0
    records: int = 0
    measurements: int = 0
    conflicting: int = 0


_Writer = Annotated[str, Field(min_length=1, max_length=200)]


class Promotion(BaseModel):
    """The target namespace, and the kernel or the writers to copy if not all.

    With `writers`, nothing is copied of a context that others have written to.
    """

    model_config = ConfigDict(extra="forbid")

    to: str = Field(pattern=NAMESPACE)
    kernel: str | None = Field(default=None, min_length=1, max_length=500, pattern=PRINTABLE)
    writers: list[_Writer] | None = Field(default=None, min_length=1, max_length=100)


class Promoted(BaseModel):
    """The number of records copied."""

    records: int


class _Export(StreamingResponse):
    """An export in its principal's turn, since a client may take hours to read it."""

    def __init__(self, call: Call, lines: Iterator[str]) -> None:
        super().__init__(self._while_valid(lines), media_type=_NDJSON)
        self._call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._call.server.transfers.turn(self._call.caller):
            await super().__call__(scope, receive, send)

    async def _while_valid(self, lines: Iterator[str]) -> AsyncIterator[str]:
        """Yield lines as long as the token of the call is valid.

        Raises:
            AccessDeniedError: The token has expired or was revoked.
        """
        _, server, _, caller, credential = self._call
        async for line in iterate_in_threadpool(lines):
            if credential and await server.principals.find(credential, caller) is None:
                raise errors.AccessDeniedError(
                    "the token has expired or was revoked during the export"
                )
            yield line


@router.get(
    "/{namespace}/export", response_class=Response, responses={200: {"content": {_NDJSON: {}}}}
)
def export_records(namespace: Namespace, call: CurrentCall, kernel: KernelName = None) -> Response:
    """Export a record set on each line."""
    call.principal.require("read", namespace)
    return _Export(call, _export_lines(call, namespace, kernel))


def _export_lines(call: Call, namespace: str, kernel: str | None) -> Iterator[str]:
    """Export a namespace, lines for each context; contexts are read as lines are consumed.

    Nothing is written: whoever may only read could otherwise fill the database.
    """
    listed = contexts.select_with_records(namespace, kernel, stored.c.digest)
    with call.database.read() as connection:
        digests = connection.execute(listed).scalars().all()
    for digest in digests:
        with call.database.read() as connection:
            sizes = record_texts.load_sizes(connection, namespace, digest)
        call.server.reader.used.add((namespace, digest))
        for page in divide(sizes.items(), _MOST_RECORDS, _MOST_BYTES):
            with call.database.read() as connection:
                loaded = record_texts.load_records(connection, namespace, digest, page)
            if loaded is not None:
                yield loaded[1] + "\n"


@router.post(
    "/{namespace}/import",
    openapi_extra={
        "requestBody": {"required": True, "content": {_NDJSON: {"schema": {"type": "string"}}}}
    },
)
@accepts("admin", writes=False)
async def import_records(namespace: Namespace, request: Request, call: CurrentCall) -> Imported:
    """Merge the lines of an export; if one is malformed, nothing is imported."""
    call.principal.require("admin", namespace)
    async with call.server.transfers.turn(call.caller):
        with tempfile.SpooledTemporaryFile(_MAX_IN_MEMORY) as lines:
            await _receive(request, lines, call.server.settings.max_import)
            async with call.server.writing.turn(namespace, call.caller):
                is_stopping = call.server.stopping.is_set
                work = (call.database, call.principal, namespace, lines, is_stopping)
                return await run_in_threadpool(import_lines, *work)


async def _receive(request: Request, file: IO[bytes], max_bytes: int) -> None:
    """Write a body to a temporary file."""
    async for chunk in body_chunks(request, max_bytes):
        try:
            await run_in_threadpool(file.write, chunk)
        except OSError as error:
            raise errors.UnavailableError(
                "the server has no room for the import among its temporary files "
                f"({error.strerror}): send it in parts, or ask its admin for room"
            ) from None


def import_lines(
    database: Database,
    principal: Principal,
    namespace: str,
    lines: IO[bytes],
    is_stopping: Callable[[], bool],
) -> Imported:
    """Merge a seekable file with a record set on each line, after every line has been checked.

    Each line is a transaction: an import of thousands would otherwise keep all writers waiting.

    Raises:
        InvalidRequestError: A line is malformed; nothing was written.
        UnavailableError: The server stops; the lines before stay, and can be sent again.
        TooLargeError: A line is too long; nothing was written.
    """
    kernels: set[str] = set()
    measured_by: set[str] = set()
    checked = Imported()
    for record_set in _parse_lines(lines):
        checked.sets += 1
        checked.records += len(record_set.records)
        kernels.add(record_set.context.kernel.name)
        measured_by |= {item.by for record in record_set.records for item in record.measurements}
    content: dict[str, Any] = {
        "sets": checked.sets,
        "records": checked.records,
        "kernels": sorted(kernels)[:_MOST_NAMES],
        "measured_by": sorted(measured_by)[:_MOST_NAMES],
    }
    with database.write() as connection:
        write_log(connection, principal, "import", namespace, **content)
    imported = Imported()
    for record_set in _parse_lines(lines):
        if is_stopping():
            raise errors.UnavailableError(
                f"the server stops and has imported {imported.sets} of "
                f"{counted(checked.sets, 'context')}: "
                "send the same again, which changes nothing of these"
            )
        with database.write() as connection:
            merged = merge_record_set(connection, principal, namespace, record_set, restore=True)
        imported.sets += 1
        imported.records += merged.records
        imported.measurements += merged.measurements
        imported.conflicting += merged.conflicting
    return imported


def _parse_lines(lines: IO[bytes]) -> Iterator[RecordSet]:
    lines.seek(0)
    number = 0
    while line := lines.readline(_LONGEST_LINE + 1):
        number += 1
        if len(line) > _LONGEST_LINE:
            raise errors.TooLargeError(
                f"line {number} has over {_LONGEST_LINE} bytes: split its records over lines"
            )
        if not line.strip():
            continue
        try:
            record_set = validate_json(line, RecordSet, math.inf)
        # A moment whose offset takes it out of the years 1 to 9999 overflows.
        except (errors.InvalidJsonError, errors.InvalidValueError, OverflowError) as error:
            raise errors.InvalidRequestError(
                f"line {number}: {error}; nothing was imported"
            ) from None
        check_record_set(record_set)
        yield record_set


@router.post("/{namespace}/promote")
@accepts("admin", 2**20)
def promote(namespace: Namespace, promotion: Promotion, call: CurrentCall) -> Promoted:
    """Copy records to another namespace, where their winners replace those of the target."""
    call.principal.require("admin", promotion.to)
    if namespace == promotion.to:
        raise errors.InvalidRequestError(
            f"{namespace!r} cannot be promoted to itself: name another namespace in `to`"
        )
    listed = contexts.select_with_records(namespace, promotion.kernel, stored.c.id)
    with call.database.read() as connection:
        ids = connection.execute(listed).scalars().all()
        # Here as well as below, so that nothing is copied if something is wrong from the start.
        for context_id in ids:
            _require_writers(connection, namespace, context_id, promotion.writers)
    if not ids:
        kernel = promotion.kernel or "any kernel"
        raise errors.NotFoundError(f"namespace {namespace!r} has no records of {kernel}")
    copied = 0
    for context_id in ids:
        with call.database.write() as connection:
            copied += _promote_context(connection, call.principal, namespace, context_id, promotion)
    return Promoted(records=copied)


def _require_writers(
    connection: Connection, source: str, context_id: int, writers: Sequence[str] | None
) -> None:
    """Check that nobody but the writers sent measurements and winners of a context that stand.

    Raises:
        InvalidRequestError: Somebody did.
    """
    if writers is None:
        return
    is_carried = (parts.c.context_id == context_id, parts.c.stands, parts.c.kind != "pin")
    query = select(parts.c.sender).distinct().where(*is_carried)
    for sender in sorted(connection.execute(query).scalars()):
        if _TOKEN_ID.sub("", sender) not in writers:
            raise errors.InvalidRequestError(
                f"namespace {source!r} has records of {sender or 'an unknown writer'}, which "
                f"{', '.join(writers)} did not write: nothing of their context is promoted"
            )


def _promote_context(
    connection: Connection, principal: Principal, source: str, context_id: int, promotion: Promotion
) -> int:
    target = promotion.to
    text = connection.execute(select(stored.c.text).where(stored.c.id == context_id)).scalar()
    if text is None:  # it is gone since it was listed
        return 0
    context = Context.model_validate_json(text)
    # All promotions lock in the same order, so that no two wait for each other.
    locked = {
        name: contexts.lock(connection, name, context.digest, context if name == target else None)
        for name in sorted((source, target))
    }
    theirs, ours = locked[source], locked[target]
    if theirs is None or ours is None:
        return 0
    _require_writers(connection, source, theirs.id, promotion.writers)
    available = list(record_texts.load_sizes(connection, source, context.digest))
    for start in range(0, len(available), _PROMOTED_AT_ONCE):
        scenarios = available[start : start + _PROMOTED_AT_ONCE]
        promoted = records.load(connection, theirs.id, scenarios)
        merged = records.load(connection, ours.id, scenarios, whole=True)
        for scenario, record in promoted.items():
            changed = merged.setdefault(scenario, StoredRecord(scenario, record.scenario_text))
            merging.promote(changed, record, f"{principal.name} from {source}", ours.present)
        limit = merging.MOST_RECORD_CHARACTERS
        records.save(connection, ours, merged.values(), principal.name, most_characters=limit)
    detail = {"source": source, "context": context.digest, "records": len(available)}
    write_log(connection, principal, "promote", target, ours.kernel, **detail)
    return len(available)
