"""Format and parse record sets as JSON that people can read and `git diff` shows well.

    {"format": 2,
    "context": {
     "kernel": { … },
     …
    },
    "records": [
    {"scenario": {"args": {"M": 32}, "dtypes": {"x_ptr": "float16"}},
     "winner": { … },
     "launches": [
      …
     ],
     "measurements": [
      {"at": "…", "config": { … }, "median": 0.0121, …},
      …
     ]},
    …
    ]}

Every measurement has a line of its own, and everything is sorted. Only a record starts a line with
a brace, so a file of ten thousand records is cut into the texts of its records without parsing
JSON. A record is parsed when a caller asks for it; a single one is found by bisection of the file.
Files with any other layout, for example after an edit by hand, are parsed as a whole, which is
slower.

A damaged record costs itself alone: what can be read of it is used, and a write that replaces it
hands its text out, to be set aside.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import IO

from pydantic import ValidationError

from ..errors import DamagedRecordsError, NewerFormatError
from ..model.merge import merge_into, merge_records, without_parts
from ..model.record import FORMAT, Record, RecordSet, first_problem, version_of
from ..model.scenario import Context, Scenario, canonical_json
from ..system.notices import warn_once

__all__ = [
    "HEAD_BYTES",
    "FileBlocks",
    "Page",
    "context_of_head",
    "find_damages",
    "find_record",
    "read_set",
]

_OPENINGS = tuple(f'{{"format": {version},\n"context": ' for version in range(1, FORMAT + 1))
_OPENING_LENGTH = len(_OPENINGS[0])
_RECORDS = ',\n"records": ['
_CLOSING = "\n]}\n"
_SCENARIO = '"scenario": '
_LINE_END = ",\n"
_RECORD_ENDS = ("]},", "]}")

HEAD_BYTES = 1 << 16
"""Bytes at a file's begin that have its context, in this module's layout."""

_BLOCK = 1 << 13
"""Bytes of the first read of a search; each further one is twice as long."""

_MOST_BYTES = 1 << 27
"""Bytes that a search reads at most. A file of a million records takes some thirty steps."""


class Page:
    """The text of one record set, cut into its records.

    Attributes:
        context: the context of all the records.
        displaced: texts that the next write leaves out, for the caller to set aside: damaged
            records that a merge has replaced, and what is no record, or is there twice.
        is_cut: whether the end of the text was missing, and so perhaps records.
        is_changed: whether the records are others than those of the text that was parsed.
    """

    def __init__(self, context: Context, records: Iterable[Record] = (), where: str = "") -> None:
        """Format the records of a context.

        Args:
            context: the context of all the records.
            records: the records; several of one scenario are merged.
            where: the file's name, for messages.
        """
        self.context = context
        self.displaced: list[str] = []
        self.is_cut = False
        self.is_changed = False
        self._where = where
        merged = merge_into({}, records)
        self._cuts = {scenario.text: _write_record(record) for scenario, record in merged.items()}

    @classmethod
    def parse(cls, text: str, where: str) -> Page:
        """Read the text of a record set.

        Args:
            text: the content of a file.
            where: the file's name, for error messages.

        Raises:
            NewerFormatError: a newer version of this package wrote it.
            DamagedRecordsError: it is truncated, not JSON, or not a record set.
        """
        page = cls._cut(text, where)
        if page and not page.displaced and not page.is_cut:
            return page
        try:  # another layout, or damage, or a record set that is empty
            record_set = read_set(text, where)
        except DamagedRecordsError:
            if not page:
                raise
            warn_once(
                f"{where} fragments",
                f"{where} is damaged: {page._describe_losses()}; `dejavu-cache doctor` shows more",
            )
            return page
        return cls(record_set.context, record_set.records, where)

    @classmethod
    def _cut(cls, text: str, where: str) -> Page | None:
        """Cut a text into records without parsing them; None if it has another layout."""
        if text.endswith(_CLOSING[:-1]):  # an editor dropped the last line end
            text += "\n"
        head, separator, body = text.partition(_RECORDS)
        if not (separator and head.startswith(_OPENINGS)):
            return None
        page = cls(_context(head[_OPENING_LENGTH:], where), where=where)
        page.is_cut = not text.endswith(_CLOSING)
        for cut in body.removesuffix(_CLOSING).split("\n{")[1:]:
            scenario = cut[len(_SCENARIO) : cut.find(_LINE_END)]
            is_record = cut.startswith(_SCENARIO) and cut.endswith(_RECORD_ENDS)
            if is_record and scenario not in page._cuts:
                page._cuts[scenario] = cut
            else:
                page.displaced.append(cut)
        return page

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self._cuts)

    def scenario_texts(self) -> list[str]:
        """Return the scenarios' text, sorted; one that is damaged is among them."""
        return sorted(self._cuts)

    def get(self, scenario: Scenario) -> Record | None:
        """Return a scenario's record; None if there is none, or it is damaged."""
        cut = self._cuts.get(scenario.text)
        return None if cut is None else _read_record(cut, self._where)

    def records(self) -> Iterator[Record]:
        """Yield all records that can be read, as they are now, sorted by their scenarios' text.

        Each is parsed when its turn comes: parsed, they take ten times the memory of their text.
        """
        cuts = sorted(self._cuts.items())
        return (r for _, cut in cuts if (r := _read_record(cut, self._where)) is not None)

    def damages(self) -> list[str]:
        """Return what is wrong with each damaged record; reads all of them."""
        problems = [
            f"{scenario}: {problem}"
            for scenario, cut in sorted(self._cuts.items())
            if (problem := _problem_of(cut))
        ]
        problems += [f"{cut[:80]!r}: not a record" for cut in self.displaced]
        if self.is_cut:
            problems.append("the end of the file is missing")
        return problems

    def _describe_losses(self) -> str:
        losses = []
        if self.displaced:
            losses.append(f"{len(self.displaced)} texts in it are no records and are passed over")
        if self.is_cut:
            losses.append("its end is missing")
        return " and ".join(losses)

    def merge(self, records: Iterable[Record]) -> None:
        """Merge records into the page."""
        merged: dict[Scenario, Record] = {}
        changed = {}
        for record in records:  # several may be of one scenario
            scenario = record.scenario
            earlier = merged.get(scenario) or self.get(scenario)
            merged[scenario] = record if earlier is None else merge_records(earlier, record)
            if merged[scenario] != earlier:
                changed[scenario.text] = _write_record(merged[scenario])
        self.displaced += [
            cut for text in changed if (cut := self._cuts.get(text)) and _problem_of(cut)
        ]
        self._replace({**self._cuts, **changed})

    def recall(self, parts: Mapping[Scenario, Collection[str]]) -> None:
        """Remove parts of records, given by their digest."""
        cuts = dict(self._cuts)
        for scenario, digests in parts.items():
            record = self.get(scenario)
            remaining = without_parts(record, digests) if record else None
            if record is not None and remaining is None:
                del cuts[scenario.text]
            elif remaining is not record and remaining is not None:
                cuts[scenario.text] = _write_record(remaining)
        self._replace(cuts)

    def drop(self, scenarios: Iterable[Scenario] | None) -> int:
        """Delete the records of some scenarios, or of all, and return their number."""
        dropped = set(self._cuts)
        if scenarios is not None:
            dropped &= {scenario.text for scenario in scenarios}
        self._replace({text: cut for text, cut in self._cuts.items() if text not in dropped})
        return len(dropped)

    def _replace(self, cuts: dict[str, str]) -> None:
        """Let records stand instead; who iterates over the earlier ones goes on with these."""
        self.is_changed = self.is_changed or cuts != self._cuts
        self._cuts = cuts

    @property
    def text(self) -> str:
        """Content of the record set's file."""
        cuts = (cut for _, cut in sorted(self._cuts.items()))
        records = ",".join("\n{" + cut.removesuffix(",") for cut in cuts)
        return f"{_head(self.context, FORMAT)}{records}{_CLOSING}"


def read_set(text: str | bytes, where: str) -> RecordSet:
    """Parse a record set of any layout.

    Raises:
        NewerFormatError: a newer version of this package wrote it.
        DamagedRecordsError: it is truncated, not JSON, or not a record set.
    """
    try:
        record_set = RecordSet.model_validate_json(text)
        version = record_set.format
    except (ValueError, RecursionError) as error:
        record_set, version, reason = None, version_of(text), _reason(error)
    if version > FORMAT:
        raise NewerFormatError(where, version, FORMAT)
    if record_set is None:
        raise DamagedRecordsError(f"{where} is damaged: {reason}")
    return record_set


def find_damages(text: str, where: str) -> list[str]:
    """Return what is wrong with each damaged record of a file's text.

    The list is empty if the text cannot be cut into records.

    Raises:
        DamagedRecordsError: its context is damaged.
    """
    page = Page._cut(text, where)
    return [] if page is None else page.damages()


class FileBlocks:
    """An open file, as long as it was when it was opened here.

    A file in a shared folder may be replaced, cut or made longer by others while it is searched. In
    memory that is mapped to it, a cut ends the process by a signal; a read only returns less. Both
    methods raise `ValueError` then, and if more than `_MOST_BYTES` bytes are read.

    Attributes:
        length: the file's length in bytes.
    """

    def __init__(self, handle: int) -> None:
        """Look at an open file; the caller closes it."""
        self._handle = handle
        self.length = os.fstat(handle).st_size
        self._left = _MOST_BYTES

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes of a range."""
        self._left -= stop - start
        if self._left < 0:
            raise ValueError("too much of the file was read")
        content = os.pread(self._handle, stop - start, start)
        if len(content) != stop - start:
            raise ValueError("the file has become shorter")
        return content

    def find(self, text: bytes, start: int, stop: int) -> int:
        """Return where a text first lies in a range, or -1."""
        size = _BLOCK
        while stop - start >= len(text):
            block = self.read(start, min(start + size, stop))
            found = block.find(text)
            if found >= 0:
                return start + found
            start += len(block) - len(text) + 1
            size *= 2
        return -1


def find_record(file: IO[bytes], context: Context, scenario: Scenario, where: str) -> Record | None:
    """Find a record by bisection of a file in this module's layout, without reading the rest.

    Args:
        file: the file, just opened.
        context: the context of the file's records.
        scenario: the scenario of the record.
        where: the file's name, for messages.

    Raises:
        ValueError: the file has another layout, or changes.
    """
    content = FileBlocks(file.fileno())
    heads = [_head(context, version).encode() for version in range(1, FORMAT + 1)]
    low = first = len(heads[0])
    end = content.length - len(_CLOSING)
    if low >= end or content.read(0, low) not in heads:
        raise ValueError("it begins otherwise")
    if content.read(end, content.length) != _CLOSING.encode():
        raise ValueError("it ends otherwise")
    opening, wanted = f"\n{{{_SCENARIO}".encode(), scenario.text.encode()
    high = after = end  # the record begins before `high`, and the next one at `after`
    passed: list[bytes] = []
    while low < high:
        middle = (low + high) // 2
        start = content.find(b"\n{", middle, min(high + 1, end))
        if start < 0:
            high = middle
            continue
        line_end = content.find(_LINE_END.encode(), start, end)
        line = content.read(start, max(line_end, start))
        current = line.removeprefix(opening)
        if current == line:
            raise ValueError("it has something else than records")
        if current == wanted:
            stop = content.find(b"\n{", line_end, end)
            return _read_record(content.read(start + 2, end if stop < 0 else stop).decode(), where)
        passed.append(current)
        if current < wanted:
            low = start + 1
        else:
            high, after = middle, start
    is_record_end = content.read(after - 3, after).decode().endswith(_RECORD_ENDS)
    if after > first and not is_record_end:
        raise ValueError("it has something else between records")
    for current in passed:  # a damaged one is out of order, and may have misled the search
        Scenario.model_validate_json(current)
    return None


@lru_cache(maxsize=256)
def _head(context: Context, version: int) -> str:
    """Return the text of a file up to its first record."""
    text = json.dumps(
        context.model_dump(mode="json", exclude_none=True),
        indent=1,
        sort_keys=True,
        ensure_ascii=False,
    )
    return f"{_OPENINGS[version - 1]}{text}{_RECORDS}"


def context_of_head(head: bytes, where: str) -> Context | None:
    """Return the context of a record set from its first `HEAD_BYTES`, or None in another layout.

    Raises:
        DamagedRecordsError: it is no record set.
    """
    end = head.find(f"{_RECORDS}\n".encode())
    text = head[: max(end, 0)].decode(errors="replace")
    return _context(text[_OPENING_LENGTH:], where) if text.startswith(_OPENINGS) else None


def _context(text: str, where: str) -> Context:
    try:
        return Context.model_validate_json(text)
    except ValidationError as error:
        raise DamagedRecordsError(f"{where} is damaged: {_reason(error)}") from None


def _write_record(record: Record) -> str:
    """Format a record, without the opening brace at which files are cut."""
    lines = [f"{_SCENARIO}{record.scenario.text},"]
    lines += [
        f' "{name}": {canonical_json(part)},'
        for name, part in (("winner", record.winner), ("pin", record.pin))
        if part
    ]
    if record.launches:
        launches = ",\n  ".join(launch.text for launch in record.launches)
        lines.append(f' "launches": [\n  {launches}\n ],')
    measurements = ",\n  ".join(canonical_json(measurement) for measurement in record.measurements)
    return "\n".join([*lines, f' "measurements": [\n  {measurements}\n ]}}'])


def _read_record(cut: str, where: str) -> Record | None:
    """Return the record of a text; of a damaged one, or one of a newer version, warn once."""
    try:
        return Record.model_validate_json(_json_of(cut))
    except ValidationError as error:
        scenario = cut.partition(_LINE_END)[0][:500]
        warn_once(
            f"{where} {scenario}",
            f"{where} is damaged at {scenario}: {first_problem(error)}; this record is passed "
            "over, and its text stays in the file until the record is written again; it is then "
            "set aside beside the file",
        )
        return None


def _problem_of(cut: str) -> str:
    """Return what is wrong with a record's text, or an empty string."""
    try:
        Record.model_validate_json(_json_of(cut))
    except ValidationError as error:
        return first_problem(error)
    return ""


def _json_of(cut: str) -> str:
    return "{" + cut.removesuffix(",")


def _reason(error: Exception) -> str:
    return first_problem(error) if isinstance(error, ValidationError) else str(error)
