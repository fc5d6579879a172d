"""Records: bulk writes, deletion, the list of contexts, pins, and what copies have to learn."""

from __future__ import annotations

import hashlib
import json
from operator import attrgetter
from typing import Annotated

from fastapi import Query, Response
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection
from starlette.concurrency import run_in_threadpool

from dejavu_cache.model.record import FORMAT, Pin, Record, RecordSet
from dejavu_cache.model.scenario import Config, Context, Scenario

from ..errors import InvalidRequestError, NotFoundError
from ..storage import contexts, merging, record_texts, records
from ..storage.contexts import LockedContext
from ..storage.database import Database
from ..storage.merging import Part, StoredRecord
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

__all__ = [
    "ContextCopy",
    "Copies",
    "Merged",
    "check_record_set",
    "delete_records",
    "merge_record_set",
    "post_records",
    "router",
    "set_pin",
    "tag_of",
]

router = versioned_router()

MOST_CHARACTERS = 64 * 1024
"""Characters of a context, many of which are listed in one answer; a real one has about 1000."""
_PART = 100
"""Records that are merged at a time."""
_MOST_BYTES = 64 * 2**20
"""Bytes of the records in an answer to revalidation, below those that clients read, unless one is
larger."""


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
    with call.database.read() as connection:
        listed = contexts.list_contexts(connection, namespace, kernel, after, limit + 1)
    following = f'"{listed[limit - 1][0]}"' if len(listed) > limit else "null"
    texts = ", ".join(text for _, text in listed[:limit])
    return json_response(f'{{"contexts": [{texts}], "next": {following}}}')


class Merged(BaseModel):
    """Counts of a bulk write; sent again, it adds no measurement."""

    records: int
    """Records in the request."""
    measurements: int
    """New measurements that readers get."""
    beside: int
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
    """Merge a record set within a transaction of the caller's.

    Args:
        connection: The write transaction.
        principal: Who sends it.
        namespace: The namespace to write to.
        sent: The record set.
        restore: Whether it brings back what was deleted.
    """
    total = Merged(records=len(sent.records), measurements=0, beside=0)
    if not sent.records:
        return total
    context = contexts.lock(connection, namespace, sent.context)
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
                total.beside += not part.stands
        # An import is logged as a whole.
        for stored in changed if may_pin and not restore else ():
            _log_pin(connection, principal, context, stored)
    return total


def _log_pin(
    connection: Connection, principal: Principal, context: LockedContext, record: StoredRecord
) -> None:
    """Log a new pin, which decides what runs, with the config that is pinned or was before."""
    pin = record.pin
    if pin is None or (pin.stored is not None and pin.stored.stands):
        return
    pins = (part for part in record.parts.values() if part.kind == "pin")
    stood = (part for part in pins if part.stored is not None and part.stored.stands)
    earlier = next((part.model.config for part in stood), None)
    write_log(
        connection,
        principal,
        "unpin" if pin.model.config is None else "pin",
        context.namespace,
        context.kernel,
        context=context.digest,
        scenario=str(Scenario.model_validate_json(record.scenario_text)),
        config=str(pin.model.config or earlier),
        by=pin.model.by,
    )


class Choice(BaseModel):
    """The config that readers shall get, and who chose it."""

    model_config = ConfigDict(extra="forbid")

    config: Config
    by: str = Field(default="", max_length=200)


@router.put("/{namespace}/contexts/{context}/pins/{scenario}", responses=responds_with(Record))
@accepts("admin")
def put_pin(
    namespace: Namespace,
    context: ContextDigest,
    scenario: ScenarioDigest,
    choice: Choice,
    call: CurrentCall,
) -> Response:
    """Pin a config, which overrides the measurements."""
    where = (namespace, context, scenario)
    record = set_pin(call.database, call.principal, *where, choice.config, choice.by)
    return json_response(record)


@router.delete("/{namespace}/contexts/{context}/pins/{scenario}", responses=responds_with(Record))
def delete_pin(
    namespace: Namespace, context: ContextDigest, scenario: ScenarioDigest, call: CurrentCall
) -> Response:
    """Remove a pin."""
    where = (namespace, context, scenario)
    record = set_pin(call.database, call.principal, *where, config=None, by="")
    return json_response(record)


def set_pin(
    database: Database,
    principal: Principal,
    namespace: str,
    context: str,
    scenario: str,
    config: Config | None,
    by: str,
) -> str:
    """Pin a config, or remove the pin: a person's choice, which overrides the measurements.

    Args:
        database: The server's database.
        principal: Who asks; needs the role `admin`.
        namespace: The namespace of the record.
        context: The digest of the record's context.
        scenario: The digest of the record's scenario.
        config: The config that readers shall get, or None to remove the pin.
        by: Who chose it; the principal's name if empty.

    Returns:
        The record as JSON.

    Raises:
        AccessDeniedError: The principal lacks the role `admin`.
        NotFoundError: There is no record of the scenario.
    """
    principal.require("admin", namespace)
    with database.write() as connection:
        locked = contexts.lock_existing(connection, namespace, context)
        stored = {} if locked is None else records.load(connection, locked.id, [scenario])
        record = stored.get(scenario)
        if locked is None or record is None or record.length is None:
            raise NotFoundError("there is no record of this scenario: post one before pinning it")
        earlier = record.pin
        if config is None and (earlier is None or earlier.model.config is None):
            return record.render()[0]
        chosen = Pin.after(
            earlier.model if earlier else None, config, by or principal.name, locked.present
        )
        record.bring(Part.of(chosen, principal.name))
        records.save(connection, locked, [record], principal.name)
        _log_pin(connection, principal, locked, record)
        return record.render()[0]


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
        locked = contexts.lock_existing(connection, namespace, context)
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
    async with call.server.rendering.turn(call.principal.name):
        return json_response(await run_in_threadpool(_revalidate, call, namespace, copies))


def _revalidate(call: Call, namespace: str, copies: Copies) -> str:
    """Compare copies with the records.

    Returns:
        JSON with the contexts that have changed: for each its revision, the records whose tag
        differs, the scenarios that have no record, and the hidden parts of the scenarios. Records
        beyond `_MOST_BYTES` are left out, and the revision is empty, so that a client asks again.

    Raises:
        TooLargeError: There are more than `MOST_RECORDS` copies.
    """
    count = sum(len(copy.scenarios) for copy in copies.contexts.values())
    require_few(count, "copies")
    changes: list[str] = []
    room = _MOST_BYTES
    with call.database.read() as connection:
        revisions = contexts.load_revisions(connection, namespace, list(copies.contexts))
        for digest, copy in copies.contexts.items():
            revision = revisions.get(digest, "")
            if revision:
                call.server.reader.used.add((namespace, digest))
            if not revision or revision != copy.revision:
                change = _changes(connection, (namespace, digest), revision, copy, room)
                changes.append(f'"{digest}": {change}')
                room = max(room - len(change), 0)
    return f'{{"contexts": {{{", ".join(changes)}}}}}'


def _changes(
    connection: Connection, key: contexts.ContextKey, revision: str, copy: ContextCopy, room: int
) -> str:
    wanted = sorted(copy.scenarios)
    hidden = record_texts.load_hidden(connection, *key, wanted)
    gone = set(wanted)
    changed: list[str] = []
    for texts in record_texts.iter_texts(connection, *key, wanted):
        gone -= texts.keys()
        differing = [
            text for digest, text in texts.items() if tag_of(text) != copy.scenarios[digest]
        ]
        size = sum(map(len, differing))
        if room < _MOST_BYTES and size > room:
            revision = ""
            continue
        changed += differing
        room -= size
    recalls = {digest: sorted(parts) for digest, parts in sorted(hidden.items())}
    return (
        f'{{"revision": {json.dumps(revision)}, "records": [{", ".join(changed)}], '
        f'"gone": {json.dumps(sorted(gone))}, "recalls": {json.dumps(recalls)}}}'
    )
