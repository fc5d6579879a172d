"""Format and parse record sets as JSON that people can read and `git diff` shows well.

    {"format": 1,
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

A damaged record costs itself alone: what can be read of it is used, its text stays in the file, and
a write that replaces it hands the text out, to be set aside.

Search a file by blocks, with a bound on what is read.

A file in a shared folder may be replaced, cut or made longer by others while it is searched. In
memory that is mapped to it, a cut ends the process by a signal; a read only returns less.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from pydantic import ValidationError

from ..errors import DamagedRecordsError, NewerFormatError
from ..model.merge import OnConflict, merge_into, merge_records, without_parts
from ..model.record import FORMAT, Record, RecordSet, first_problem, read_record, required_format
from ..model.scenario import Context, Scenario, canonical_json
from ..system.notices import warn_once

__all__ = [
    "HEAD_BYTES",
    "FileBlocks",
    "Page",
    "context_of_head",
    "find",
    "find_damages",
    "read_set",
]


_BLOCK = 1 << 13
"""Bytes of the first read of a search; each further one is twice as long."""

_MOST_BYTES = 1 << 27
"""Bytes that a search reads at most. A file of a million records takes twenty steps."""


class FileBlocks:
    """An open file, as long as it was when it was opened here.

    `read`, `find` and `rfind` raise `ValueError` if the file has become shorter, or if more than
    `_MOST_BYTES` bytes of it are read.
    """

    def __init__(self, handle: int) -> None:
        """Look at an open file; the caller closes it."""
        self._handle = handle
        self._length = os.fstat(handle).st_size
        self._left = _MOST_BYTES

    def __len__(self) -> int:
        """Return the file's length in bytes."""
        return self._length

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

    def rfind(self, text: bytes, start: int, stop: int) -> int:
        """Return where a text last lies in a range, or -1."""
        size = _BLOCK
        while stop - start >= len(text):
            begin = max(stop - size, start)
            found = self.read(begin, stop).rfind(text)
            if found >= 0:
                return begin + found
            stop = begin + len(text) - 1 if begin > start else start
            size *= 2
        return -1


_OPENINGS = tuple(f'{{"format": {version},\n"context": ' for version in range(1, FORMAT + 1))
_OPENING_LENGTH = len(_OPENINGS[0])
_RECORDS = ',\n"records": ['
_CLOSING = "\n]}\n"
_SCENARIO = '"scenario": '
_LINE_END = ",\n"

HEAD_BYTES = 1 << 16
"""Bytes at a file's begin that have its context, in this module's layout."""


class Page:
    """The text of one record set, cut into its records.

    Attributes:
        context: the context of all the records.
        displaced: texts of damaged records that a merge has replaced, for the caller to set aside.
        is_cut: whether the end of the text was missing, and so perhaps records.
    """

    def __init__(self, context: Context, records: Iterable[Record] = ()) -> None:
        """Format the records of a context."""
        self.context = context
        self.displaced: list[str] = []
        self.is_cut = False
        merged = merge_into({}, records)
        self._cuts = {scenario.text: _write_record(record) for scenario, record in merged.items()}
        # Texts that begin like no record, or like one that is there already, to be written again.
        self._fragments: list[str] = []

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
        if page:  # an empty page may also come from a damaged file, which parsing detects
            return page
        try:
            record_set = read_set(text, where)
        except DamagedRecordsError:
            page = cls._cut(text, where, damaged=True)
            if not page:
                raise
            warn_once(
                f"{where} fragments",
                f"{where} is damaged: {page._describe_losses()}; `dejavu-cache doctor` shows more",
            )
            return page
        return cls(record_set.context, record_set.records)

    @classmethod
    def _cut(cls, text: str, where: str, *, damaged: bool = False) -> Page | None:
        """Cut a text into records without parsing them; None if it has another layout.

        Args:
            text: the content of a file.
            where: the file's name, for error messages.
            damaged: whether texts that are no records are let pass, as fragments.
        """
        if text.endswith(_CLOSING[:-1]):  # an editor dropped the last line end
            text += "\n"
        head, separator, body = text.partition(_RECORDS)
        is_closed = text.endswith(_CLOSING)
        if not (separator and head.startswith(_OPENINGS) and (is_closed or damaged)):
            return None
        page = cls(_context(head[_OPENING_LENGTH:], where))
        page.is_cut = not is_closed
        for cut in body.removesuffix(_CLOSING).split("\n{")[1:]:
            end = cut.find(_LINE_END)
            scenario = cut[len(_SCENARIO) : end]
            is_record = cut.startswith(_SCENARIO) and cut.endswith(("]},", "]}"))
            if is_record and scenario not in page._cuts:
                page._cuts[scenario] = cut
            elif damaged:
                page._fragments.append(cut)
            else:
                return None
        return page

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self._cuts)

    def scenario_texts(self) -> list[str]:
        """Return the scenarios' text, sorted."""
        return _valid_scenarios(sorted(self._cuts))

    def get(self, scenario: Scenario, where: str) -> Record | None:
        """Return what can be read of a scenario's record, or None."""
        cut = self._cuts.get(scenario.text)
        return None if cut is None else _read_record(cut, where)

    def records(self, where: str) -> Iterator[Record]:
        """Yield what can be read of all records as they are now, sorted by their scenarios' text.

        Each is parsed when its turn comes: parsed, they take ten times the memory of their text.
        """
        cuts = sorted(self._cuts.items())
        return (record for _, cut in cuts if (record := _read_record(cut, where)) is not None)

    def damages(self) -> list[str]:
        """Return what is wrong with each damaged record; reads all of them."""
        problems = [
            f"{scenario}: {problem}"
            for scenario, cut in sorted(self._cuts.items())
            if (problem := read_record(_json_of(cut)).problem)
        ]
        problems += [f"{cut[:80]!r}: not a record" for cut in self._fragments]
        if self.is_cut:
            problems.append("the end of the file is missing")
        return problems

    def _describe_losses(self) -> str:
        losses = []
        if self._fragments:
            losses.append(f"{len(self._fragments)} texts in it are no records and are passed over")
        if self.is_cut:
            losses.append("its end is missing")
        return " and ".join(losses)

    def merge(self, records: Iterable[Record], on_conflict: OnConflict, where: str) -> bool:
        """Merge records into the page, and return whether that changed anything."""
        merged: dict[Scenario, Record] = {}
        changed = {}
        for record in records:  # several may be of one scenario
            scenario = record.scenario
            earlier = merged.get(scenario) or self.get(scenario, where)
            merged[scenario] = (
                record if earlier is None else merge_records(earlier, record, on_conflict)
            )
            if merged[scenario] != earlier:
                changed[scenario.text] = _write_record(merged[scenario])
        self.displaced += [
            cut
            for text in changed
            if (cut := self._cuts.get(text)) and read_record(_json_of(cut)).problem
        ]
        self._cuts = {**self._cuts, **changed}
        return bool(changed)

    def recall(self, parts: Mapping[Scenario, Collection[str]], where: str) -> bool:
        """Remove parts of records, given by their digest; return whether that changed anything."""
        cuts = dict(self._cuts)
        for scenario, digests in parts.items():
            record = self.get(scenario, where)
            remaining = without_parts(record, digests) if record else None
            if record is not None and remaining is None:
                del cuts[scenario.text]
            elif remaining is not record and remaining is not None:
                cuts[scenario.text] = _write_record(remaining)
        changed = cuts != self._cuts
        self._cuts = cuts
        return changed

    def drop(self, scenarios: Iterable[Scenario] | None) -> int:
        """Delete the records of some scenarios, or of all, and return their number."""
        dropped = set(self._cuts)
        if scenarios is not None:
            dropped &= {scenario.text for scenario in scenarios}
        self._cuts = {
            scenario: cut for scenario, cut in self._cuts.items() if scenario not in dropped
        }
        if not self._cuts:
            self.displaced, self._fragments = self.displaced + self._fragments, []
        return len(dropped)

    @property
    def text(self) -> str:
        """Content of the record set's file."""
        cuts = [cut for _, cut in sorted(self._cuts.items())] + self._fragments
        records = ",".join("\n{" + cut.removesuffix(",") for cut in cuts)
        return f"{_head(self.context, required_format(cuts))}{records}{_CLOSING}"


def read_set(text: str | bytes, where: str) -> RecordSet:
    """Parse a record set of any layout.

    Raises:
        NewerFormatError: a newer version of this package wrote it.
        DamagedRecordsError: it is truncated, not JSON, or not a record set.
    """
    try:
        record_set = RecordSet.model_validate_json(text)
        version: Any = record_set.format
    except (ValueError, RecursionError) as error:
        record_set, version, reason = None, _format_of(text), _reason(error)
    if isinstance(version, int) and version > FORMAT:
        raise NewerFormatError(where, version, FORMAT)
    if record_set is None:
        raise DamagedRecordsError(f"{where} is damaged: {reason}")
    return record_set


def _format_of(text: str | bytes) -> Any:
    try:
        return json.loads(text).get("format")
    except (ValueError, AttributeError, RecursionError):
        return None


def find_damages(text: str, where: str) -> list[str]:
    """Return what is wrong with each damaged record of a file's text.

    The list is empty if the text cannot be cut into records.

    Raises:
        DamagedRecordsError: its context is damaged.
    """
    page = Page._cut(text, where, damaged=True)
    return [] if page is None else page.damages()


def find(content: FileBlocks, context: Context, scenario: Scenario, where: str) -> Record | None:
    """Find a record by bisection of a file in this module's layout, without reading the rest.

    None only means that bisection did not find the record: the file may have another layout.

    Args:
        content: the file.
        context: the context of the file's records.
        scenario: the scenario of the record.
        where: the file's name, for error messages.
    """
    heads = [_head(context, version).encode() for version in range(1, FORMAT + 1)]
    closing = _CLOSING.encode()
    low, high = len(heads[0]), len(content) - len(closing)
    if low >= high or content.read(0, low) not in heads:
        return None
    if content.read(high, len(content)) != closing:
        return None
    opening, wanted = f"\n{{{_SCENARIO}".encode(), scenario.text.encode()
    while low < high:
        start = content.rfind(b"\n{", low, (low + high) // 2 + 2)
        end = content.find(_LINE_END.encode(), start + 1, high)
        if start < low or end < 0 or content.read(start, start + len(opening)) != opening:
            return None
        current = content.read(start + len(opening), end)
        if current > wanted:  # where that record ends need not be read
            high = start
            continue
        after = content.find(b"\n{", end, high)
        stop = high if after < 0 else after
        if current == wanted:
            return _read_record(content.read(start + 2, stop).decode(), where)
        low = stop
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
    """Return what can be read of a record's text, and warn once about the rest."""
    record, problem = read_record(_json_of(cut))
    if problem:
        scenario = cut.partition(_LINE_END)[0][:500]
        used = "the rest of this record is used" if record else "this record is passed over"
        warn_once(
            f"{where} {scenario}",
            f"{where} is damaged at {scenario}: {problem}; {used}, and its text stays in the file "
            "until the record is written again; it is then set aside beside the file",
        )
    return record


def _valid_scenarios(texts: list[str]) -> list[str]:
    """Return the texts that are scenarios; parsing all together is fast if nothing is damaged."""
    try:
        parsed = json.loads(f"[{','.join(texts)}]")
        if len(parsed) == len(texts) and all(map(_looks_like_scenario, parsed)):
            return texts
    except (ValueError, RecursionError):
        pass
    return [text for text in texts if _is_scenario(text)]


def _looks_like_scenario(values: Any) -> bool:
    fields = (values.get("args"), values.get("dtypes")) if isinstance(values, dict) else (None,)
    return all(
        isinstance(field, dict)
        and not any(isinstance(value, (list, dict)) for value in field.values())
        for field in fields
    )


def _is_scenario(text: str) -> bool:
    try:
        Scenario.model_validate_json(text)
    except ValidationError:
        return False
    return True


def _json_of(cut: str) -> str:
    return "{" + cut.removesuffix(",")


def _reason(error: Exception) -> str:
    return first_problem(error) if isinstance(error, ValidationError) else str(error)
