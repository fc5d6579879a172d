"""Export and import of record sets, and promotion from one namespace to another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO

from pydantic import BaseModel, ValidationError
from sqlalchemy import Connection

from dejavu_cache.model.record import Record, RecordSet, required_format
from dejavu_cache.model.scenario import Context

from ..errors import InvalidRequestError, NotFoundError, TooLargeError
from ..storage import contexts, misses, records
from ..storage.database import Database
from .access import Principal
from .json_text import has_nul
from .merging import override
from .records import check_record_set, merge_record_set

__all__ = ["Imported", "export_lines", "import_lines", "promote", "render"]


class Imported(BaseModel):
    """Counts of an import."""

    sets: int = 0
    records: int = 0
    measurements: int = 0
    beside: int = 0


def render(stored: records.StoredRecordSet) -> str:
    """Render a record set as one line of JSON by joining the stored texts of its records."""
    joined = ", ".join(stored.records)
    version = required_format(stored.records)
    return f'{{"context": {stored.context}, "format": {version}, "records": [{joined}]}}'


def export_lines(
    database: Database, principal: Principal, namespace: str, kernel: str | None
) -> Iterator[str]:
    """Export a namespace, a line for each context; contexts are read as lines are consumed.

    Raises:
        AccessDeniedError: The principal lacks the role `read`; raised before the first line.
    """
    principal.require("read", namespace)
    return _lines(database, namespace, kernel)


def _lines(database: Database, namespace: str, kernel: str | None) -> Iterator[str]:
    with database.read() as connection:
        digests = list(contexts.iter_digests(connection, namespace, kernel))
    for digest in digests:
        with database.read() as connection:
            stored = records.load_record_set(connection, namespace, digest)
        if stored is not None:
            yield render(stored) + "\n"


def import_lines(
    database: Database,
    principal: Principal,
    namespace: str,
    lines: IO[bytes],
    max_records: int,
    max_line: int,
) -> Imported:
    """Merge an export, after every line has been checked.

    Args:
        database: The server's database.
        principal: Who imports; needs the role `admin`.
        namespace: The namespace to write to.
        lines: A seekable file with a record set on each line.
        max_records: The largest number of records on a line.
        max_line: The largest number of bytes of a line.

    Raises:
        AccessDeniedError: The principal lacks the role `admin`.
        InvalidRequestError: A line is malformed; nothing was written.
        TooLargeError: A line is too long; nothing was written.
    """
    principal.require("admin", namespace)
    for _ in _parse_lines(lines, max_records, max_line):
        pass
    imported = Imported()
    for record_set in _parse_lines(lines, max_records, max_line):
        with database.write() as connection:
            merged = merge_record_set(connection, principal, namespace, record_set)
        imported.sets += 1
        imported.records += merged.records
        imported.measurements += merged.measurements
        imported.beside += merged.beside
    return imported


def _parse_lines(lines: IO[bytes], max_records: int, max_line: int) -> Iterator[RecordSet]:
    lines.seek(0)
    number = 0
    while line := lines.readline(max_line + 1):
        number += 1
        if len(line) > max_line:
            raise TooLargeError(
                f"line {number} has over {max_line} bytes: split its records over several lines"
            )
        if line.strip():
            yield _parse_line(line, number, max_records)


def _parse_line(line: bytes, number: int, max_records: int) -> RecordSet:
    try:
        record_set = RecordSet.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the whole"
        raise InvalidRequestError(
            f"line {number}: {field}: {first['msg']}; nothing was imported"
        ) from None
    except OverflowError as error:
        # A moment whose offset takes it out of the years 1 to 9999.
        raise InvalidRequestError(f"line {number}: at: {error}; nothing was imported") from None
    if has_nul(line):
        raise InvalidRequestError(
            f"line {number}: a text has a NUL character; nothing was imported"
        )
    check_record_set(record_set, max_records)
    return record_set


def promote(
    database: Database,
    principal: Principal,
    source: str,
    target: str,
    kernel: str | None,
    digests: Sequence[str] | None,
) -> int:
    """Copy records to another namespace, where their measurements and winners replace others.

    Args:
        database: The server's database.
        principal: Who promotes; needs the role `admin` in both namespaces.
        source: The namespace to copy from.
        target: The namespace to copy to.
        kernel: The name of the only kernel to copy, or None for all.
        digests: The digests of the only contexts to copy, or None for all.

    Returns:
        The number of records copied.

    Raises:
        AccessDeniedError: The principal lacks the role `admin` in one of the namespaces.
        InvalidRequestError: Source and target are the same namespace.
        NotFoundError: The source has no such records.
    """
    principal.require("admin", source)
    principal.require("admin", target)
    if source == target:
        raise InvalidRequestError(
            f"{source!r} cannot be promoted to itself: name another namespace in `to`"
        )
    with database.read() as connection:
        available = list(contexts.iter_digests(connection, source, kernel))
    missing = sorted(set(digests or ()) - set(available))
    if missing or not available:
        subject = ", ".join(missing) or kernel or "any kernel"
        raise NotFoundError(f"namespace {source!r} has no records of {subject}")
    copied = 0
    for digest in available if digests is None else sorted(set(digests)):
        with database.write() as connection:
            copied += _promote_context(connection, principal, source, target, digest)
    return copied


def _promote_context(
    connection: Connection, principal: Principal, source: str, target: str, digest: str
) -> int:
    stored = records.load_record_set(connection, source, digest)
    if stored is None:
        return 0
    promoted = [Record.model_validate_json(text) for text in stored.records]
    scenarios = [record.scenario.digest for record in promoted]
    context_id = contexts.lock(connection, target, Context.model_validate_json(stored.context))
    current = records.load(connection, context_id, scenarios)
    merges = [override(current.get(record.scenario.digest), record) for record in promoted]
    records.save(connection, context_id, [merge.record for merge in merges], promoted=True)
    for merge in merges:
        records.add_claims(connection, context_id, merge.claims, f"{principal.name} from {source}")
        standing = [(claim.measurement.config.digest, claim.digest) for claim in merge.claims]
        records.replace_standing(connection, context_id, merge.record.scenario.digest, standing)
    misses.drop_tuned(connection, context_id, scenarios)
    if any(current.get(merge.record.scenario.digest) != merge.record for merge in merges):
        contexts.bump_revision(connection, context_id, added=len(promoted) - len(current))
    return len(promoted)
