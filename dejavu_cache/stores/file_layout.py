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
JSON. A record is parsed when a caller asks for it; a single one is found by its first line, in a
search by halves. Files with any other layout, for example after an edit by hand, or of an earlier
format, are parsed as a whole, which is slower.

A damaged record costs itself alone: what can be read of it is used. Before a write leaves out what
cannot be read, the store keeps a copy of the whole file.

A packed file is such a file in gzip: a member `head` for what precedes the first record, then one
for each record, named by its scenario's digest, so that a damaged one costs no other.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import pairwise
from typing import IO

from pydantic import ValidationError

from ..errors import DamagedRecordsError, NewerFormatError
from ..model.merge import merge_records, without_parts
from ..model.record import FORMAT, Record, RecordSet, first_problem, version_of
from ..model.scenario import Context, Scenario, canonical_json
from ..system.notices import size_text, warn_once

_OPENING = f'{{"format": {FORMAT},\n"context": '
_RECORDS = ',\n"records": ['
_CLOSING = "\n]}\n"
_SCENARIO = '"scenario": '
_LINE_END = ",\n"

_FIRST_LINE = re.compile(rb'\n\{(?:"scenario": (.*),\n)?')
"""The first line of a record; without a group, of something else."""

_BLOCK = 1 << 16
"""Bytes that a search reads at a time."""

LARGEST_PACKED = 1 << 26
"""Bytes of a packed file, packed and unpacked."""

_GZIP = zlib.MAX_WBITS | 16
_MEMBER = re.compile(rb"\x1f\x8b\x08\x08.{6}[0-9a-f]{24}\0", re.DOTALL)
"""The beginning of a packed record, with its name at the tenth byte."""


@dataclass
class Page:
    """The text of one record set, cut into its records.

    Attributes:
        context: the context of all the records.
        where: the file's name, for messages.
        loss: what the next write leaves out that is in the file, because it cannot be read; empty
            if it is nothing.
        is_changed: whether the records are others than those of the text that was parsed.
    """

    context: Context
    where: str
    loss: str = ""
    is_changed: bool = False
    _cuts: dict[str, str] = field(default_factory=dict, init=False)

    @classmethod
    def parse(cls, content: bytes, where: str) -> Page:
        """Read a file; `where` is its name, by which it is packed or not.

        Raises:
            NewerFormatError: a newer version of this package wrote it.
            DamagedRecordsError: it is truncated, not JSON, or not a record set.
        """
        text = (unpack(content) if where.endswith(".gz") else content).decode()
        page = cls._cut(text, where)
        if page and not page.loss:
            return page
        try:  # another layout, or damage, or a record set that is empty
            record_set = read_set(text, where)
        except DamagedRecordsError:
            if not page:
                raise
            warn_once(
                f"{where} fragments",
                f"{where} is damaged: {page.loss}; `dejavu-cache doctor` shows more",
            )
            return page
        page = cls(record_set.context, where)
        page.merge(record_set.records)
        page.is_changed = False
        return page

    @classmethod
    def _cut(cls, text: str, where: str) -> Page | None:
        """Cut a text into records without parsing them; None if it has no record in this layout."""
        if text.endswith(_CLOSING[:-1]):  # an editor dropped the last line end
            text += "\n"
        head, separator, body = text.partition(_RECORDS)
        if not (separator and head.startswith(_OPENING)):
            return None
        try:
            context = Context.model_validate_json(head[len(_OPENING) :])
        except ValidationError as error:
            raise DamagedRecordsError(f"{where} is damaged: {first_problem(error)}") from None
        page = cls(context, where)
        if not text.endswith(_CLOSING):
            page.loss = "its end is missing"
        for cut in body.removesuffix(_CLOSING).split("\n{")[1:]:
            scenario = cut[len(_SCENARIO) : cut.find(_LINE_END)]
            record = cut.removesuffix(",")
            is_record = record.startswith(_SCENARIO) and record.endswith("]}")
            if is_record and scenario not in page._cuts:
                page._cuts[scenario] = record
            else:
                page.loss = f"{cut[:80]!r} is no record, or there twice"
        return page if page._cuts else None

    def scenario_texts(self) -> list[str]:
        """Return the scenarios' text, sorted; one that is damaged is among them."""
        return sorted(self._cuts)

    def get(self, scenario: Scenario) -> Record | None:
        """Return a scenario's record; None if there is none, or it is damaged."""
        cut = self._cuts.get(scenario.text)
        return None if cut is None else _read_record(cut, self.where)

    def records(self) -> Iterator[Record]:
        """Yield all records that can be read, as they are now, sorted by their scenarios' text.

        Each is parsed when its turn comes: parsed, they take ten times the memory of their text.
        """
        cuts = sorted(self._cuts.items())
        return (r for _, cut in cuts if (r := _read_record(cut, self.where)) is not None)

    def problems(self) -> list[str]:
        """Return what is wrong with the file and with each damaged record; reads all of them."""
        damages = [(text, _problem_of(cut)) for text, cut in sorted(self._cuts.items())]
        records = [f"{text}: {problem}" for text, problem in damages if problem]
        return [*records, *([self.loss] if self.loss else [])]

    def merge(self, records: Iterable[Record]) -> None:
        """Merge records into the page."""
        for record in records:
            text, earlier = record.scenario.text, self.get(record.scenario)
            merged = record if earlier is None else merge_records(earlier, record)
            if merged != earlier:
                if earlier is None and text in self._cuts:
                    self.loss = f"{text}: {_problem_of(self._cuts[text])}"
                self._cuts[text] = _write_record(merged)
                self.is_changed = True

    def recall(self, parts: Mapping[Scenario, Collection[str]]) -> None:
        """Remove parts of records, given by their digest."""
        for scenario, digests in parts.items():
            record = self.get(scenario)
            remaining = without_parts(record, digests) if record else None
            if remaining is not record:
                self.is_changed = True
                if remaining is None:
                    del self._cuts[scenario.text]
                else:
                    self._cuts[scenario.text] = _write_record(remaining)

    def drop(self, scenarios: Iterable[Scenario] | None) -> int:
        """Delete the records of some scenarios, or of all, and return their number."""
        dropped = set(self._cuts)
        if scenarios is not None:
            dropped &= {scenario.text for scenario in scenarios}
        for text in dropped:
            del self._cuts[text]
        self.is_changed = self.is_changed or bool(dropped)
        return len(dropped)

    @property
    def text(self) -> str:
        """Content of the record set's file; empty without records."""
        if not self._cuts:
            return ""
        records = ",\n{".join(map(self._cuts.__getitem__, sorted(self._cuts)))
        return f"{_head(self.context)}\n{{{records}{_CLOSING}"


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
        record_set, version, reason = None, version_of(text), first_problem(error)
    if version > FORMAT:
        raise NewerFormatError(where, version, FORMAT)
    if record_set is None:
        raise DamagedRecordsError(f"{where} is damaged: {reason}")
    return record_set


def find_place(file: IO[bytes], context: Context, wanted: Scenario) -> int | None:
    """Return where a scenario's record begins in a sorted file, or None; it is searched by halves.

    Raises:
        ValueError: the file has another layout, or something else than records.
    """
    low, high = 0, os.fstat(file.fileno()).st_size
    while high - low > _BLOCK:
        middle = (low + high) // 2
        text, _ = next(find_places(file, context, middle), ("~", 0))  # texts begin with a brace
        low, high = (low, middle) if text > wanted.text else (middle, high)
    for text, start in find_places(file, context, low):
        if text >= wanted.text:
            return start if text == wanted.text else None
    return None


def find_places(file: IO[bytes], context: Context, start: int = 0) -> Iterator[tuple[str, int]]:
    """Yield the scenario's text and the place of each record that begins at `start` or later.

    Raises:
        ValueError: the file has another layout, or something else than records.
    """
    head, closing, handle = _head(context).encode(), _CLOSING.encode(), file.fileno()
    end = max(os.fstat(handle).st_size - len(closing), 0)
    if (os.pread(handle, len(head), 0), os.pread(handle, len(closing), end)) != (head, closing):
        raise ValueError("it begins or ends otherwise")
    position, rest = file.seek(start), b""
    for block in iter(partial(file.read, _BLOCK), b""):
        lines = rest + block
        last = max(lines.rfind(b"\n"), 0)
        for match in _FIRST_LINE.finditer(lines, 0, last + 1):
            if match[1] is None:
                raise ValueError("it has something else than records")
            yield match[1].decode(errors="replace"), position + match.start()
        position, rest = position + last, lines[last:]


def read_place(file: IO[bytes], start: int, where: str) -> Record | None:
    """Return the record that begins at a place of a file; None if it is damaged."""
    file.seek(start + 2)
    content = file.read(_BLOCK)
    while (stop := content.find(b"\n{")) < 0 and (block := file.read(_BLOCK)):
        content += block
    cut = content[:stop] if stop >= 0 else content.removesuffix(_CLOSING.encode())
    return _read_record(cut.decode().removesuffix(","), where)


def read_context(file: IO[bytes]) -> Context:
    """Return the context of a file of this module's layout, and read no more than its beginning.

    Raises:
        ValueError: the file has another layout, or no records.
    """
    block = file.read(_BLOCK)
    if block.startswith(b"\x1f\x8b"):
        block = zlib.decompressobj(_GZIP).decompress(block, _BLOCK)
    head, records, _ = block.partition(f"{_RECORDS}\n{{".encode())
    if not (records and head.startswith(_OPENING.encode())):
        raise ValueError("it begins otherwise")
    return Context.model_validate_json(head[len(_OPENING) :])


def unpack(data: bytes) -> bytes:
    """Return the content of a packed file, in which a note stands for each damaged member.

    Raises:
        ValueError: it is too large.
    """
    starts = [0, *(match.start() for match in _MEMBER.finditer(data, 1)), len(data)]
    texts, room = list[bytes](), LARGEST_PACKED
    for start, stop in pairwise(starts):
        member, text = zlib.decompressobj(_GZIP), b""
        with suppress(zlib.error):
            text = member.decompress(data[start:stop], room)
        room -= len(text)
        if not room:
            raise ValueError(f"it unpacks to {size_text(LARGEST_PACKED)} or more")
        texts.append(text if member.eof else b"")
        if not member.eof or member.unused_data:
            end = "\n{" if stop < len(data) else ""
            texts.append(f"what is packed at byte {start}{end}".encode())
    return b"".join(texts)


@lru_cache(maxsize=256)
def _head(context: Context) -> str:
    """Return the text of a file up to its first record."""
    text = json.dumps(
        context.model_dump(mode="json", exclude_none=True),
        indent=1,
        sort_keys=True,
        ensure_ascii=False,
    )
    return f"{_OPENING}{text}{_RECORDS}"


def _write_record(record: Record) -> str:
    """Format a record, without the opening brace at which files are cut."""
    lines = [f"{_SCENARIO}{record.scenario.text},"]
    for name, part in (("winner", record.winner), ("pin", record.pin)):
        if part:
            lines.append(f' "{name}": {canonical_json(part)},')
    if record.launches:
        launches = ",\n  ".join(map(canonical_json, record.launches))
        lines.append(f' "launches": [\n  {launches}\n ],')
    measurements = ",\n  ".join(map(canonical_json, record.measurements))
    return "\n".join([*lines, f' "measurements": [\n  {measurements}\n ]}}'])


@lru_cache(maxsize=32)
def _read_record(cut: str, where: str) -> Record | None:
    """Return the record of a text; of a damaged one, or one of a newer version, warn once.

    Tunes of like scenarios predict from the same records, one after the other.
    """
    try:
        return Record.model_validate_json("{" + cut)
    except ValidationError as error:
        scenario = cut.partition(_LINE_END)[0][:500]
        warn_once(
            f"{where} {scenario}",
            f"{where} is damaged at {scenario}: {first_problem(error)}; this record is passed "
            "over, and its text stays in the file until the record is written again; the file is "
            "then kept beside the new one",
        )
        return None


def _problem_of(cut: str) -> str:
    """Return what is wrong with a record's text, or an empty string."""
    try:
        Record.model_validate_json("{" + cut)
    except ValidationError as error:
        return first_problem(error)
    return ""
