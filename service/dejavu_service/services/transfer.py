"""Export and import of record sets, and promotion of records from one namespace to another."""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

from pydantic import BaseModel
from sqlalchemy import Connection, select

from dejavu_cache.model.record import RecordSet
from dejavu_cache.model.scenario import Context, canonical_json
from dejavu_cache.system.notices import counted

from ..errors import InvalidRequestError, NotFoundError, ServerStoppingError, TooLargeError
from ..storage import contexts, record_texts, records
from ..storage.contexts import LockedContext
from ..storage.database import Database
from ..storage.records import Act, StoredRecord
from ..storage.sql import divide
from ..storage.tables import contexts as stored
from ..storage.tables import parts
from . import merging
from .access import Principal
from .json_text import InvalidJsonError, InvalidValueError, validate_json
from .log import write_log
from .reads import RecordReader
from .records import check_record_set, merge_record_set

__all__ = ["Imported", "export_lines", "import_lines", "promote"]

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
    beside: int = 0


def export_lines(
    database: Database, namespace: str, kernel: str | None, reader: RecordReader
) -> Iterator[str]:
    """Export a namespace, lines for each context; contexts are read as lines are consumed.

    Nothing is written: whoever may only read could otherwise fill the database.

    Args:
        database: The server's database.
        namespace: The namespace.
        kernel: The name of the only kernel to export, or None for all.
        reader: It notes that the contexts were read.
    """
    with database.read() as connection:
        digests = contexts.list_digests(connection, namespace, kernel)
    for digest in digests:
        with database.read() as connection:
            context = contexts.load_text(connection, namespace, digest)
            sizes = dict(record_texts.list_sizes(connection, namespace, digest))
        reader.note_use((namespace, digest))
        for page in divide(sizes, sizes.__getitem__, _MOST_RECORDS, _MOST_BYTES):
            with database.read() as connection:
                texts = record_texts.load_texts(connection, namespace, digest, page)
            if context is not None and texts:
                present = [texts[scenario] for scenario in page if scenario in texts]
                yield record_texts.render(context, present) + "\n"


def import_lines(
    database: Database,
    principal: Principal,
    namespace: str,
    lines: IO[bytes],
    is_stopping: Callable[[], bool],
) -> Imported:
    """Merge an export, after every line has been checked.

    Each line is a transaction: an import of thousands would otherwise keep all writers waiting.

    Args:
        database: The server's database.
        principal: Who imports; needs the role `admin`.
        namespace: The namespace to write to.
        lines: A seekable file with a record set on each line.
        is_stopping: Tells whether the server stops.

    Raises:
        AccessDeniedError: The principal lacks the role `admin`.
        InvalidRequestError: A line is malformed; nothing was written.
        ServerStoppingError: The server stops; the lines before stay, and can be sent again.
        TooLargeError: A line is too long; nothing was written.
    """
    principal.require("admin", namespace)
    checked = Imported()
    kernels: set[str] = set()
    measured_by: set[str] = set()
    for record_set in _parse_lines(lines):
        checked.sets += 1
        checked.records += len(record_set.records)
        kernels.add(record_set.context.kernel.name)
        measured_by |= {item.by for one in record_set.records for item in one.measurements}
    content: dict[str, Any] = checked.model_dump(include={"sets", "records"})
    content["kernels"] = sorted(kernels)[:_MOST_NAMES]
    content["measured_by"] = sorted(measured_by)[:_MOST_NAMES]
    with database.write() as connection:
        write_log(connection, principal, "import", namespace, **content)
    imported = Imported()
    for record_set in _parse_lines(lines):
        if is_stopping():
            raise ServerStoppingError(
                f"the server stops and has imported {imported.sets} of "
                f"{counted(checked.sets, 'context')}: "
                "send the same again, which changes nothing of these"
            )
        with database.write() as connection:
            merged = merge_record_set(connection, principal, namespace, record_set, restore=True)
        imported.sets += 1
        imported.records += merged.records
        imported.measurements += merged.measurements
        imported.beside += merged.beside
    return imported


def _parse_lines(lines: IO[bytes]) -> Iterator[RecordSet]:
    lines.seek(0)
    number = 0
    while line := lines.readline(_LONGEST_LINE + 1):
        number += 1
        if len(line) > _LONGEST_LINE:
            raise TooLargeError(
                f"line {number} has over {_LONGEST_LINE} bytes: split its records over lines"
            )
        if line.strip():
            yield _parse_line(line, number)


def _parse_line(line: bytes, number: int) -> RecordSet:
    try:
        record_set = validate_json(line, RecordSet, math.inf)
    except (InvalidJsonError, InvalidValueError) as error:
        raise InvalidRequestError(f"line {number}: {error}; nothing was imported") from None
    except OverflowError as error:
        # A moment whose offset takes it out of the years 1 to 9999.
        raise InvalidRequestError(f"line {number}: at: {error}; nothing was imported") from None
    check_record_set(record_set)
    return record_set


def promote(
    database: Database,
    principal: Principal,
    source: str,
    target: str,
    kernel: str | None,
    writers: Sequence[str] | None = None,
) -> int:
    """Copy records to another namespace, where their measurements and winners replace others.

    Args:
        database: The server's database.
        principal: Who promotes; needs the role `admin` in both namespaces.
        source: The namespace to copy from.
        target: The namespace to copy to.
        kernel: The name of the only kernel to copy, or None for all.
        writers: The names of the only tokens whose measurements and winners may be among them, or
            None for all.

    Returns:
        The number of records copied.

    Raises:
        AccessDeniedError: The principal lacks the role `admin` in one of the namespaces.
        InvalidRequestError: Source and target are the same namespace, or others than `writers`
            wrote what would be copied; of a context that they wrote to, nothing is.
        NotFoundError: The source has no such records.
    """
    principal.require("admin", source)
    principal.require("admin", target)
    if source == target:
        raise InvalidRequestError(
            f"{source!r} cannot be promoted to itself: name another namespace in `to`"
        )
    with database.read() as connection:
        digests = contexts.list_digests(connection, source, kernel)
    if not digests:
        raise NotFoundError(f"namespace {source!r} has no records of {kernel or 'any kernel'}")
    wanted = canonical_json({"source": source, "kernel": kernel})
    act = Act(secrets.token_hex(8), target, "promote", principal.name, wanted)
    if writers is not None:  # so that nothing is copied if something is wrong from the start
        with database.read() as connection:
            for digest in digests:
                _require_writers(connection, source, digest, writers)
    copied = 0
    for digest in digests:
        with database.write() as connection:
            copied += _promote_context(connection, principal, source, digest, act, writers)
    return copied


def _require_writers(
    connection: Connection, source: str, digest: str, writers: Sequence[str]
) -> None:
    """Check that nobody else sent the measurements and the winners of a context that stand.

    Raises:
        InvalidRequestError: Somebody did.
    """
    query = (
        select(parts.c.sender)
        .distinct()
        .join(stored, stored.c.id == parts.c.context_id)
        .where(stored.c.namespace == source, stored.c.digest == digest)
        .where(parts.c.stands, parts.c.kind != "pin")
    )
    for sender in sorted(connection.execute(query).scalars()):
        if _TOKEN_ID.sub("", sender) not in writers:
            raise InvalidRequestError(
                f"namespace {source!r} has records of {sender or 'an unknown writer'}, which "
                f"{', '.join(writers)} did not write: nothing of their context is promoted"
            )


def _promote_context(
    connection: Connection,
    principal: Principal,
    source: str,
    digest: str,
    act: Act,
    writers: Sequence[str] | None,
) -> int:
    locked = _lock(connection, source, act.namespace, digest)
    if locked is None:
        return 0
    theirs, ours = locked
    if writers is not None:
        _require_writers(connection, source, digest, writers)
    sender = f"{principal.name} from {source}"
    copied = 0
    available = records.list_scenarios(connection, theirs.id)
    for start in range(0, len(available), _PROMOTED_AT_ONCE):
        scenarios = available[start : start + _PROMOTED_AT_ONCE]
        promoted = records.load(connection, theirs.id, scenarios)
        merged = records.load(connection, ours.id, scenarios, whole=True)
        for scenario, record in promoted.items():
            target = merged.setdefault(scenario, StoredRecord(scenario, record.scenario_text))
            merging.override(target, record, sender, act.id, ours.present)
        limit = merging.MOST_RECORD_CHARACTERS
        records.save(
            connection, ours, merged.values(), principal.name, act=act, most_characters=limit
        )
        copied += len(promoted)
    detail = {"source": source, "context": digest, "records": copied}
    write_log(connection, principal, "promote", act.namespace, ours.kernel, **detail)
    return copied


def _lock(
    connection: Connection, source: str, target: str, digest: str
) -> tuple[LockedContext, LockedContext] | None:
    """Lock the context in both namespaces; None if the source has none any more."""
    text = contexts.load_text(connection, source, digest)
    if text is None:
        return None
    context = Context.model_validate_json(text)
    # All promotions lock in the same order, so that no two wait for each other.
    locked = {
        namespace: contexts.lock(connection, target, context)
        if namespace == target
        else contexts.lock_existing(connection, source, digest)
        for namespace in sorted((source, target))
    }
    theirs, ours = locked[source], locked[target]
    return None if theirs is None or ours is None else (theirs, ours)
