"""How a record set is written down: JSON that a person can read and `git diff` shows well.

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

A line per measurement, everything sorted. Since only a record begins with a brace at the start of a
line, a file of ten thousand records is cut into its records without being parsed; a record is parsed
when somebody asks for it, and one is found by bisection without reading the others. A file that was laid
out by other hands is read all the same, only slower.
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
        context: whose records these are.
    """

    def __init__(self, context: Context, records: Iterable[Record] = ()) -> None:
        self.context = context
        self._cuts = {record.scenario.text: _write_record(record) for record in records}

    @classmethod
    def parse(cls, text: str, where: str) -> Page:
        """Reads a record set's text.

        Raises:
            NewerFormatError: a newer version wrote it.
            DamagedRecordsError: it is truncated, not JSON, or not a record set.
        """
        return cls._cut(text, where) or cls._parse_whole(text, where)

    @classmethod
    def _cut(cls, text: str, where: str) -> Page | None:
        """The quick way, or None if the text is not laid out as this module does it."""
        head, found, body = text.partition(_RECORDS)
        if not (found and head.startswith(_OPENINGS) and text.endswith(_CLOSING)):
            return None
        page = cls(_context(head[_OPENING_LENGTH:], where))
        for cut in body[: -len(_CLOSING)].split("\n{")[1:]:
            end = cut.find(_LINE_END)
            if not cut.startswith(_SCENARIO) or not cut.endswith(("]},", "]}")):
                return None
            page._cuts[cut[len(_SCENARIO) : end]] = cut
        return page

    @classmethod
    def _parse_whole(cls, text: str, where: str) -> Page:
        whole = read_set(text, where)
        return cls(whole.context, whole.records)

    def __len__(self) -> int:
        return len(self._cuts)

    def get(self, scenario: Scenario, where: str) -> Record | None:
        """One record, or None.

        Raises:
            DamagedRecordsError: its text is not a record.
        """
        cut = self._cuts.get(scenario.text)
        return None if cut is None else _read_record(cut, where)

    def records(self, where: str) -> Iterator[Record]:
        """All records, in the order of their scenarios' text.

        Raises:
            DamagedRecordsError: the text of one is not a record.
        """
        for _, cut in sorted(self._cuts.items()):
            yield _read_record(cut, where)

    def merge(self, records: Iterable[Record], on_conflict: OnConflict, where: str) -> bool:
        """Merges records in, and says whether that changed anything."""
        changed = {}
        for record in records:
            known = self.get(record.scenario, where)
            merged = record if known is None else merge_records(known, record, on_conflict)
            if merged != known:
                changed[record.scenario.text] = _write_record(merged)
        self._cuts = {**self._cuts, **changed}
        return bool(changed)

    def drop(self, scenarios: Iterable[Scenario] | None) -> int:
        """Drops some records, or all, and says how many there were."""
        gone = (
            set(self._cuts)
            if scenarios is None
            else {scenario.text for scenario in scenarios} & set(self._cuts)
        )
        self._cuts = {scenario: cut for scenario, cut in self._cuts.items() if scenario not in gone}
        return len(gone)

    @property
    def text(self) -> str:
        """The record set as it is written down."""
        records = ",".join("\n{" + cut.removesuffix(",") for _, cut in sorted(self._cuts.items()))
        return f"{_head(self.context, required_format(self._cuts.values()))}{records}{_CLOSING}"


def read_set(text: str | bytes, where: str) -> RecordSet:
    """A record set, however it is laid out.

    Raises:
        NewerFormatError: a newer version wrote it.
        DamagedRecordsError: it is truncated, not JSON, or not a record set.
    """
    try:
        found = json.loads(text).get("format")
        if isinstance(found, int) and found > FORMAT:
            raise NewerFormatError(where, found, FORMAT)
        return RecordSet.model_validate_json(text)
    except (ValueError, AttributeError) as error:
        raise DamagedRecordsError(f"{where} is damaged: {_reason(error)}") from None


def find(held: mmap, context: Context, scenario: Scenario, where: str) -> Record | None:
    """One record of a file that this module laid out, by bisection; the rest is not read.

    None means that it was not found this way, not that it is not there: other hands may have put it elsewhere.

    Raises:
        DamagedRecordsError: its text is not a record.
    """
    heads, closing = [_head(context, version).encode() for version in (1, 2)], _CLOSING.encode()
    low, high = len(heads[0]), len(held) - len(closing)
    if low >= high or held[:low] not in heads or held[high:] != closing:
        return None
    opening, wanted = f"\n{{{_SCENARIO}".encode(), scenario.text.encode()
    while low < high:
        start = held.rfind(b"\n{", low, (low + high) // 2 + 2)
        end = held.find(_LINE_END.encode(), start + 1, high)
        if start < low or end < 0 or held[start : start + len(opening)] != opening:
            return None
        found, after = held[start + len(opening) : end], held.find(b"\n{", end, high)
        if found == wanted:
            return _read_record(held[start + 2 : high if after < 0 else after].decode(), where)
        low, high = (low, start) if found > wanted else (high if after < 0 else after, high)
    return None


@lru_cache(maxsize=256)
def _head(context: Context, version: int) -> str:
    """What stands before the records."""
    text = json.dumps(
        context.model_dump(mode="json", exclude_none=True),
        indent=1,
        sort_keys=True,
        ensure_ascii=False,
    )
    return f"{_OPENINGS[version - 1]}{text}{_RECORDS}"


def read_context(file: TextIO, where: str) -> Context:
    """The context of a record set, read no further than it must be.

    Raises:
        NewerFormatError: a newer version wrote it.
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
    """A record's cut: its text without the opening brace."""
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
