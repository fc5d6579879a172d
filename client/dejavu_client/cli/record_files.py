"""Files of records that `import` reads: exports, and a store's own files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from typing import NamedTuple

from pydantic import ValidationError

from dejavu_cache.errors import DamagedRecordsError, NewerFormatError, StoreError
from dejavu_cache.model.record import FORMAT, RecordSet, first_problem
from dejavu_cache.stores.file_layout import read_set

__all__ = ["RecordText", "read_record_texts"]

_BLOCK = 1 << 20


class RecordText(NamedTuple):
    """A record set's text, which takes a fraction of the memory of its records.

    Attributes:
        text: a line of an export, or a whole file of a store.
        position: the file and the line, for error messages.
        is_line: whether it is a line of an export.
    """

    text: str
    position: str
    is_line: bool

    def parse(self) -> RecordSet:
        """Return the record set, or raise a `StoreError` that says why there is none."""
        parse = _parse_line if self.is_line else _parse_record_file
        return parse(self.text, self.position)


def read_record_texts(file: str) -> list[RecordText]:
    """Return the texts of the record sets of a file, all of which can be parsed.

    Those without records are left out.

    Args:
        file: the path; `-` is standard input.

    Raises:
        StoreError: it cannot be read, is damaged, or has a newer format.
    """
    try:
        return [text for text in _read_texts(file) if text.parse().records]
    except NewerFormatError as error:
        raise StoreError(f"{error}, and nothing was imported") from None


def _read_texts(file: str) -> Iterator[RecordText]:
    try:
        text = _read_bytes(file).decode()
    except OSError as error:
        raise StoreError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise _refuse(file, str(error)) from None
    # A line of an export is a whole object; a store's own file, also if reformatted, has several.
    if not text.lstrip().partition("\n")[0].rstrip().endswith("}") and "\n" in text.strip():
        yield RecordText(text, file, is_line=False)
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield RecordText(line, f"{file}, line {number}", is_line=True)


def _read_bytes(file: str) -> bytes:
    """Return the content of a file or of standard input, which may be larger than a store's file.

    A sparse file of any length costs nothing on the disk, and would fill the memory with zeros.
    """
    blocks = []
    with nullcontext(sys.stdin.buffer) if file == "-" else open(file, "rb") as stream:
        while block := stream.read(_BLOCK):
            if b"\0" in block:
                raise _refuse(file, "it has NUL bytes")
            blocks.append(block)
    return b"".join(blocks)


def _parse_record_file(text: str, file: str) -> RecordSet:
    """Parse a store's own file; one damaged record makes it an error, unlike in a store."""
    try:
        return read_set(text, file)
    except DamagedRecordsError as error:
        raise _refuse(file, str(error).removeprefix(f"{file} is damaged: ")) from None


def _refuse(position: str, problem: str) -> DamagedRecordsError:
    return DamagedRecordsError(
        f"{position} is damaged, so nothing was imported; repair it, get it again or leave it out: "
        f"{problem}"
    )


def _parse_line(line: str, position: str) -> RecordSet:
    try:
        record_set = RecordSet.model_validate_json(line)
    except ValidationError as error:
        raise _refuse(position, first_problem(error)) from None
    if record_set.format > FORMAT:
        raise NewerFormatError(position, record_set.format, FORMAT)
    return record_set
