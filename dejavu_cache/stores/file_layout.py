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
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import lru_cache
from mmap import mmap
from typing import TextIO

from pydantic import ValidationError

from ..errors import DamagedRecordsError, NewerFormatError
from ..model.merge import OnConflict, merge_records
from ..model.record import FORMAT, Record, RecordSet, required_format
from ..model.scenario import Context, Scenario, canonical_json

__all__ = ["Page", "find", "read_context", "read_set"]

_OPENINGS = tuple(f'{{"format": {version},\n"context": ' for version in range(1, FORMAT + 1))
_OPENING_LENGTH = len(_OPENINGS[0])
_RECORDS = ',\n"records": ['
_CLOSING = "\n]}\n"
_SCENARIO = '"scenario": '
_LINE_END = ",\n"


class Page:
    """The text of one record set, cut into its records.

    Attributes:
        context: the context of all the records.
    """

    def __init__(self, context: Context, records: Iterable[Record] = ()) -> None:
        """Format the records of a context."""
        self.context = context
        self._cuts = {record.scenario.text: _write_record(record) for record in records}

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
        record_set = read_set(text, where)
        return cls(record_set.context, record_set.records)

    @classmethod
    def _cut(cls, text: str, where: str) -> Page | None:
        """Cut a text into records without parsing them; None if it has another layout."""
        head, separator, body = text.partition(_RECORDS)
        if not (separator and head.startswith(_OPENINGS) and text.endswith(_CLOSING)):
            return None
        page = cls(_context(head[_OPENING_LENGTH:], where))
        for cut in body[: -len(_CLOSING)].split("\n{")[1:]:
            end = cut.find(_LINE_END)
            if not cut.startswith(_SCENARIO) or not cut.endswith(("]},", "]}")):
                return None
            page._cuts[cut[len(_SCENARIO) : end]] = cut
        return page

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self._cuts)

    def scenario_texts(self) -> list[str]:
        """Return the scenarios' text, sorted."""
        return sorted(self._cuts)

    def get(self, scenario: Scenario, where: str) -> Record | None:
        """Return a scenario's record, or None.

        Raises:
            DamagedRecordsError: its text is not a record.
        """
        cut = self._cuts.get(scenario.text)
        return None if cut is None else _read_record(cut, where)

    def records(self, where: str) -> Iterator[Record]:
        """Yield all records, sorted by their scenarios' text.

        Raises:
            DamagedRecordsError: the text of one is not a record.
        """
        for _, cut in sorted(self._cuts.items()):
            yield _read_record(cut, where)

    def merge(self, records: Iterable[Record], on_conflict: OnConflict, where: str) -> bool:
        """Merge records into the page, and return whether that changed anything."""
        changed = {}
        for record in records:
            earlier = self.get(record.scenario, where)
            merged = record if earlier is None else merge_records(earlier, record, on_conflict)
            if merged != earlier:
                changed[record.scenario.text] = _write_record(merged)
        self._cuts = {**self._cuts, **changed}
        return bool(changed)

    def drop(self, scenarios: Iterable[Scenario] | None) -> int:
        """Delete the records of some scenarios, or of all, and return their number."""
        dropped = set(self._cuts)
        if scenarios is not None:
            dropped &= {scenario.text for scenario in scenarios}
        self._cuts = {
            scenario: cut for scenario, cut in self._cuts.items() if scenario not in dropped
        }
        return len(dropped)

    @property
    def text(self) -> str:
        """Content of the record set's file."""
        records = ",".join("\n{" + cut.removesuffix(",") for _, cut in sorted(self._cuts.items()))
        return f"{_head(self.context, required_format(self._cuts.values()))}{records}{_CLOSING}"


def read_set(text: str | bytes, where: str) -> RecordSet:
    """Parse a record set of any layout.

    Raises:
        NewerFormatError: a newer version of this package wrote it.
        DamagedRecordsError: it is truncated, not JSON, or not a record set.
    """
    try:
        version = json.loads(text).get("format")
        if isinstance(version, int) and version > FORMAT:
            raise NewerFormatError(where, version, FORMAT)
        return RecordSet.model_validate_json(text)
    except (ValueError, AttributeError, RecursionError) as error:
        raise DamagedRecordsError(f"{where} is damaged: {_reason(error)}") from None


def find(content: mmap, context: Context, scenario: Scenario, where: str) -> Record | None:
    """Find a record by bisection of a file in this module's layout, without reading the rest.

    None only means that bisection did not find the record: the file may have another layout.

    Args:
        content: the memory-mapped file.
        context: the context of the file's records.
        scenario: the scenario of the record.
        where: the file's name, for error messages.

    Raises:
        DamagedRecordsError: the record's text is not a record.
    """
    heads, closing = [_head(context, version).encode() for version in (1, 2)], _CLOSING.encode()
    low, high = len(heads[0]), len(content) - len(closing)
    if low >= high or content[:low] not in heads or content[high:] != closing:
        return None
    opening, wanted = f"\n{{{_SCENARIO}".encode(), scenario.text.encode()
    while low < high:
        start = content.rfind(b"\n{", low, (low + high) // 2 + 2)
        end = content.find(_LINE_END.encode(), start + 1, high)
        if start < low or end < 0 or content[start : start + len(opening)] != opening:
            return None
        current, after = content[start + len(opening) : end], content.find(b"\n{", end, high)
        if current == wanted:
            return _read_record(content[start + 2 : high if after < 0 else after].decode(), where)
        low, high = (low, start) if current > wanted else (high if after < 0 else after, high)
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


def read_context(file: TextIO, where: str) -> Context:
    """Read the context of a record set, and if the layout allows, no further.

    Raises:
        NewerFormatError: a newer version of this package wrote it.
        DamagedRecordsError: it is no record set.
    """
    head = ""
    for line in file:
        head += line
        if head.endswith(_RECORDS + "\n") and head.startswith(_OPENINGS):
            return _context(head[_OPENING_LENGTH : -len(_RECORDS) - 1], where)
    return Page.parse(head, where).context


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


def _read_record(cut: str, where: str) -> Record:
    try:
        return Record.model_validate_json("{" + cut.removesuffix(","))
    except ValidationError as error:
        raise DamagedRecordsError(
            f"{where} is damaged at {cut.partition(_LINE_END)[0]}: {_reason(error)}"
        ) from None


def _reason(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False, include_context=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
