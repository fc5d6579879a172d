"""Records: bulk writes, deletion, the list of contexts, pins, and what copies have to learn."""

import hashlib
import json
from operator import attrgetter
from typing import Annotated

from fastapi import Query, Response
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection, select
from starlette.concurrency import run_in_threadpool

from dejavu_cache.model.record import FORMAT, Pin, Record, RecordSet, divide
from dejavu_cache.model.scenario import Config, Context, Scenario

from ..errors import InvalidRequestError, NotFoundError
from ..storage import contexts, merging, record_texts, records
from ..storage.contexts import LockedContext
from ..storage.merging import Part, StoredRecord
from ..storage.tables import contexts as stored_contexts
from .access import Principal
from .log import write_log
from .requests import (
    DIGEST,
    Call,
    ContextDigest,
    CurrentCall,
    Digest,
    KernelName,
    Namespace,
    ScenarioDigest,
    accepts,
    json_response,
    require_few,
    responds_with,
    versioned_router,
)

router = versioned_router()

MOST_CHARACTERS = 64 * 1024
"""Characters of a context, many of which are listed in one answer; a real one has about 1000."""
_PART = 100
"""Records that are merged at a time."""
_MOST_BYTES = 64 * 2**20
"""Bytes of records after which an answer to revalidation ends. With the last part, which may be one
record of the largest size, it has fewer than clients read."""
_PART_BYTES = 4 * 2**20
"""Bytes of records that are compared at once."""


class ContextPage(BaseModel):
    """Contexts, and the digest to continue after; null on the last page."""

    contexts: list[Context]
    next: str | None


@router.get("/{namespace}/contexts", responses=responds_with(ContextPage))
def list_contexts(
    namespace: Namespace,
    call: CurrentCall,
    kernel: KernelName = None,
    after: Annotated[str | None, Query(pattern=DIGEST)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """List the contexts that have records, page by page."""
    call.principal.require("read", namespace)
    query = contexts.select_with_records(
        namespace, kernel, stored_contexts.c.digest, stored_contexts.c.text
    )
    query = query.where(stored_contexts.c.digest > (after or "")).limit(limit + 1)
    with call.database.read() as connection:
        listed = connection.execute(query).all()
    following = f'"{listed[limit - 1].digest}"' if len(listed) > limit else "null"
    texts = ", ".join(row.text for row in listed[:limit])
    return json_response(f'{{"contexts": [{texts}], "next": {following}}}')


class Merged(BaseModel):
    """Counts of a bulk write; sent again, it adds no measurement."""

    records: int
    """Records in the request."""
    measurements: int
    """New measurements that readers get."""
    conflicting: int
    """New measurements that contradict an earlier one and are only stored."""
    refused: int = 0
    """Measurements that were not stored; absent if none.

    They were recalled, are older than their record's deletion, cannot be true (a timing that no
    launch can have, a time ahead of the server's), or are more than a record holds.
    """


@router.post("/{namespace}/records", response_model_exclude_defaults=True)
@accepts("write", None)
def post_records(namespace: Namespace, sent: RecordSet, call: CurrentCall) -> Merged:
    """Merge records in one transaction; sending them again changes nothing."""
    check_record_set(sent)
    with call.database.write() as connection:
        return merge_record_set(connection, call.principal, namespace, sent)


def check_record_set(sent: RecordSet) -> None:
    """Check the format, the context and the number of records of a record set.

    Raises:
        InvalidRequestError: The record set has a newer format than this server's, or its context
            has over `MOST_CHARACTERS`.
        TooLargeError: The record set has more than `MOST_RECORDS` records.
    """
    if not 1 <= sent.format <= FORMAT:
        raise InvalidRequestError(
            f"format {sent.format} is not known here: this server takes 1 to {FORMAT}"
        )
    if len(sent.context.text) > MOST_CHARACTERS:
        raise InvalidRequestError(
            f"the context has {len(sent.context.text)} characters, and may have {MOST_CHARACTERS}: "
            "shorten the values of environment variables in it"
        )
    require_few(len(sent.records), "records")


def merge_record_set(
    connection: Connection,
    principal: Principal,
    namespace: str,
    sent: RecordSet,
    *,
    restore: bool = False,
) -> Merged:
    """Merge a record set within a write transaction; `restore` brings back what was deleted."""
    total = Merged(records=len(sent.records), measurements=0, conflicting=0)
    if not sent.records:
        return total
    context = contexts.lock(connection, namespace, sent.context.digest, sent.context)
    assert context is not None
    may_pin = principal.may("admin", namespace)
    # An admin's import is not stopped in its middle.
    limit = None if restore else merging.MOST_RECORD_CHARACTERS
    # Some at a time, because the records of a large set do not fit into the memory together.
    for start in range(0, len(sent.records), _PART):
        some = sent.records[start : start + _PART]
        digests = [*map(attrgetter("scenario.digest"), some)]
        merged = records.load(connection, context.id, digests)
        for record, digest in zip(some, digests, strict=True):
            stored = merged.setdefault(digest, StoredRecord(digest, record.scenario.text))
            total.refused += merging.receive(
                stored, record, principal.name, context.present, pins=may_pin, restore=restore
            )
        changed = merged.values()
        came = records.save(connection, context, changed, principal.name, most_characters=limit)
        for part in came:
            if part.kind == "measurement":
                total.measurements += part.stands
                total.conflicting += not part.stands
        # An import is logged as a whole.
        for stored in changed if may_pin and not restore else ():
            if stored.pin is not None and not (stored.pin.stored and stored.pin.stored.stands):
                _log_pin(connection, principal, context, stored, stored.pin)
    return total


def _log_pin(
    connection: Connection,
    principal: Principal,
    context: LockedContext,
    record: StoredRecord,
    pin: Part,
) -> None:
    """Log a new pin, which decides what runs, with the config that is pinned or was before."""
    stood = (
        part.model.config
        for part in record.parts.values()
        if part.kind == "pin" and part.stored and part.stored.stands
    )
    write_log(
        connection,
        principal,
        "unpin" if pin.model.config is None else "pin",
        context.namespace,
        context.kernel,
        context=context.digest,
        scenario=str(Scenario.model_validate_json(record.scenario_text)),
        config=str(pin.model.config or next(stood, None)),
        by=pin.model.by,
    )


class PinRequest(BaseModel):
    """The config that readers shall get, null to remove the pin, and who chose it."""

    model_config = ConfigDict(extra="forbid")

    config: Config | None
    by: str = Field(default="", max_length=200)


@router.put("/{namespace}/contexts/{context}/pins/{scenario}", responses=responds_with(Record))
@accepts("admin")
def put_pin(
    namespace: Namespace,
    context: ContextDigest,
    scenario: ScenarioDigest,
    request: PinRequest,
    call: CurrentCall,
) -> Response:
    """Pin a config, which overrides the measurements, or remove the pin."""
    principal, config = call.principal, request.config
    with call.database.write() as connection:
        locked = contexts.lock(connection, namespace, context)
        stored = {} if locked is None else records.load(connection, locked.id, [scenario])
        record = stored.get(scenario)
        if locked is None or record is None or record.length is None:
            raise NotFoundError("there is no record of this scenario: post one before pinning it")
        earlier = record.pin.model if record.pin else None
        if config is not None or (earlier is not None and earlier.config is not None):
            pin = Pin.after(earlier, config, request.by or principal.name, locked.present)
            part = record.bring(Part.of(pin, principal.name))
            records.save(connection, locked, [record], principal.name)
            _log_pin(connection, principal, locked, record, part)
        return json_response(record.render()[0])


class Deleted(BaseModel):
    """The number of records deleted."""

    deleted: int


_Scenarios = Annotated[list[Annotated[str, Query(pattern=DIGEST)]] | None, Query(max_length=1000)]


@router.delete("/{namespace:namespace}/contexts/{context:digest}/records")
def delete_records(
    namespace: Namespace, context: ContextDigest, call: CurrentCall, scenario: _Scenarios = None
) -> Deleted:
    """Delete records with their measurements, and recall them from other machines' copies."""
    call.principal.require("admin", namespace)
    with call.database.write() as connection:
        locked = contexts.lock(connection, namespace, context)
        if locked is None:
            return Deleted(deleted=0)
        deleted = records.delete_records(connection, locked, scenario, call.principal.name)
        if deleted:
            detail = {"context": context, "scenarios": scenario, "records": deleted}
            write_log(connection, call.principal, "delete", namespace, locked.kernel, **detail)
        return Deleted(deleted=deleted)


_Tag = Annotated[str, Field(max_length=16)]


class ContextCopy(BaseModel):
    """A client's copies of records of one context.

    Attributes:
        revision: The revision as of the client's last revalidation; empty if there was none.
        scenarios: The tag of the record that the client got last, by the digest of its scenario;
            empty if it got none.
    """

    model_config = ConfigDict(extra="forbid")

    revision: str = Field(default="", max_length=64)
    scenarios: dict[Digest, _Tag] = Field(min_length=1, max_length=100_000)


class Copies(BaseModel):
    """A client's copies by the digest of their context."""

    model_config = ConfigDict(extra="forbid")

    contexts: dict[Digest, ContextCopy] = Field(max_length=1000)


class ContextChanges(BaseModel):
    """What has changed of a context that a client has copies of."""

    revision: str
    """The present revision, to send the next time; empty if the context does not exist."""
    records: list[Record]
    """The records that differ from the client's."""
    gone: list[str]
    """Digests of the scenarios that have no record."""
    recalls: dict[str, list[str]]
    """Digests of measurements and pins that no copy may keep, by the digest of the scenario."""


class Revalidation(BaseModel):
    """Changes by the digest of their context; contexts without any are left out."""

    contexts: dict[str, ContextChanges]


def tag_of(text: str) -> str:
    """Return the tag of a record's canonical JSON."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@router.post("/{namespace}/revalidation", responses=responds_with(Revalidation))
@accepts("read", 4 * 2**20, writes=False)
async def revalidate_copies(namespace: Namespace, copies: Copies, call: CurrentCall) -> Response:
    """Return what has changed of the records that a client has copies of."""
    async with call.server.rendering.turn(call.caller):
        return json_response(await run_in_threadpool(_revalidate, call, namespace, copies))


def _revalidate(call: Call, namespace: str, copies: Copies) -> str:
    """Compare copies with the records.

    Returns:
        JSON with the contexts that have changed: for each its revision, the records whose tag
        differs, the scenarios that have no record, and the hidden parts of the scenarios. Beyond
        `_MOST_BYTES`, records are left out, and the revision is empty: a client asks again.

    Raises:
        TooLargeError: There are more than `MOST_RECORDS` copies.
    """
    count = sum(len(copy.scenarios) for copy in copies.contexts.values())
    require_few(count, "copies")
    changes: list[str] = []
    room = _MOST_BYTES
    with call.database.read() as connection:
        query = select(stored_contexts.c.digest, stored_contexts.c.revision).where(
            stored_contexts.c.namespace == namespace, stored_contexts.c.digest.in_(copies.contexts)
        )
        revisions: dict[str, str] = dict(connection.execute(query).all())
        for digest, copy in copies.contexts.items():
            revision = revisions.get(digest, "")
            if revision:
                call.server.reader.used.add((namespace, digest))
            if not revision or revision != copy.revision:
                change = _changes(connection, (namespace, digest), revision, copy, room)
                changes.append(f'"{digest}": {change}')
                room -= len(change)
    return f'{{"contexts": {{{", ".join(changes)}}}}}'


def _changes(
    connection: Connection, key: contexts.ContextKey, revision: str, copy: ContextCopy, room: int
) -> str:
    wanted = sorted(copy.scenarios)
    hidden = record_texts.load_hidden(connection, *key, wanted)
    sizes = record_texts.load_sizes(connection, *key, wanted)
    changed: list[str] = []
    for page in divide(sizes.items(), len(sizes), _PART_BYTES):
        if room <= 0:
            revision = ""
            break
        for digest, text in record_texts.load_texts(connection, *key, page).items():
            if tag_of(text) != copy.scenarios[digest]:
                changed.append(text)
                room -= sizes[digest]
    gone = sorted(copy.scenarios.keys() - sizes.keys())
    recalls = {digest: sorted(parts) for digest, parts in sorted(hidden.items())}
    return (
        f'{{"revision": {json.dumps(revision)}, "records": [{", ".join(changed)}], '
        f'"gone": {json.dumps(gone)}, "recalls": {json.dumps(recalls)}}}'
    )
