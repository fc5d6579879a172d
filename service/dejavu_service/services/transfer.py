"""Export and import of record sets."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import IO, Any

from pydantic import BaseModel

from dejavu_cache.model.record import RecordSet
from dejavu_cache.system.notices import counted

from ..errors import InvalidRequestError, ServerStoppingError, TooLargeError
from ..storage import contexts, record_texts
from ..storage.database import Database
from ..storage.sql import divide
from .access import Principal
from .json_text import InvalidJsonError, InvalidValueError, validate_json
from .log import write_log
from .merging import MOST_RECORD_CHARACTERS
from .reads import RecordReader
from .records import check_record_set, merge_record_set

__all__ = ["Imported", "export_lines", "import_lines"]

_MOST_RECORDS, _MOST_BYTES = 1000, 4 * 2**20
"""Limits of a line of an export, unless one record is longer."""

_MOST_NAMES = 100
"""Kernels and hosts that the log names of an import."""
_LONGEST_LINE = MOST_RECORD_CHARACTERS + 2**20
"""Bytes of a line of an import: a record as large as one may become, and its context."""


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
        digests = list(contexts.iter_digests(connection, namespace, kernel))
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
    max_records: int,
    is_stopping: Callable[[], bool],
) -> Imported:
    """Merge an export, after every line has been checked.

    Each line is a transaction: an import of thousands would otherwise keep all writers waiting.

    Args:
        database: The server's database.
        principal: Who imports; needs the role `admin`.
        namespace: The namespace to write to.
        lines: A seekable file with a record set on each line.
        max_records: The largest number of records on a line.
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
    for record_set in _parse_lines(lines, max_records):
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
    for record_set in _parse_lines(lines, max_records):
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


def _parse_lines(lines: IO[bytes], max_records: int) -> Iterator[RecordSet]:
    lines.seek(0)
    number = 0
    while line := lines.readline(_LONGEST_LINE + 1):
        number += 1
        if len(line) > _LONGEST_LINE:
            raise TooLargeError(
                f"line {number} has over {_LONGEST_LINE} bytes: split its records over lines"
            )
        if line.strip():
            yield _parse_line(line, number, max_records)


def _parse_line(line: bytes, number: int, max_records: int) -> RecordSet:
    try:
        record_set = validate_json(line, RecordSet, math.inf)
    except (InvalidJsonError, InvalidValueError) as error:
        raise InvalidRequestError(f"line {number}: {error}; nothing was imported") from None
    except OverflowError as error:
        # A moment whose offset takes it out of the years 1 to 9999.
        raise InvalidRequestError(f"line {number}: at: {error}; nothing was imported") from None
    check_record_set(record_set, max_records)
    return record_set
