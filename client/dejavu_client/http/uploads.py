"""Send record sets as JSON, in requests of a size that servers accept.

Nothing here parses a record into its model: the background thread that uploads may be interrupted
by the program's end at any point.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, NamedTuple

from .errors import RefusedError

__all__ = [
    "REFUSALS_FOR_GOOD",
    "TOO_LARGE",
    "RefusedPart",
    "encode",
    "join",
    "parse_record_set_json",
    "upload",
]

TOO_LARGE = 413
REFUSALS_FOR_GOOD = {400, TOO_LARGE, 422}
"""Statuses that are about the records sent, and not about who sends them or when."""

MOST_RECORDS = 1000
MOST_BYTES = 2**20
"""Limits of one request: a quarter of what a server takes, which cannot answer while it parses."""

MOST_REFUSALS = 20
"""Records of one record set that are singled out; if there are more, the rest goes in one piece."""

Document = dict[str, Any]
"""A record set as JSON has it."""


class RefusedPart(NamedTuple):
    """A part of a record set that the server refuses for good, and its answer."""

    part: Document
    error: RefusedError


def parse_record_set_json(text: bytes) -> Document:
    """Parse a record set only as far as sending it needs.

    Raises:
        ValueError: it is no record set.
    """
    try:
        document = json.loads(text)
    except RecursionError as error:
        raise ValueError(str(error)) from None
    if not (
        isinstance(document, dict)
        and isinstance(document.get("context"), dict)
        and isinstance(document.get("records"), list)
        and isinstance(document.get("format", 1), int)
    ):
        raise ValueError("it is no record set")
    return document


def encode(document: Document) -> bytes:
    """Encode a record set, in ASCII: a damaged one may have halves of characters."""
    return json.dumps(document).encode()


def join(documents: Iterable[Document]) -> list[Document]:
    """Put the records of each context together; the order of a context's records stays."""
    joined: dict[str, Document] = {}
    for document in documents:
        context = json.dumps(document["context"], sort_keys=True)
        before = joined.get(context)
        if before is None:
            joined[context] = {**document, "records": list(document["records"])}
        else:
            before["records"] += document["records"]
            before["format"] = max(before.get("format", 1), document.get("format", 1))
    return list(joined.values())


def upload(
    document: Document,
    send: Callable[[bytes, int], None],
    divide_on: Collection[int] = REFUSALS_FOR_GOOD,
) -> list[RefusedPart]:
    """Send a record set in parts, and return the parts that the server refuses for good.

    A part that is refused with a status in `divide_on` is sent again in halves, down to single
    records, so that the other records of the set arrive. A record that is too large for a request
    is sent in parts of its measurements, which the server merges.

    Args:
        document: the record set.
        send: sends an encoded record set with a number of records.
        divide_on: HTTP statuses.

    Raises:
        RemoteError: the server does not answer, or refuses the sender. Some parts may have
            arrived; to send them again changes nothing.
    """
    refusals: list[RefusedPart] = []
    parts = deque(_split(document))
    while parts:
        part = parts.popleft()
        try:
            send(encode(part), len(part["records"]))
        except RefusedError as error:
            if error.status not in REFUSALS_FOR_GOOD:
                raise
            records = part["records"]
            may_divide = error.status in divide_on and len(refusals) < MOST_REFUSALS
            if len(records) == 1 and error.status == TOO_LARGE:
                records = _divide_record(records[0])
            if len(records) > 1 and may_divide:
                middle = len(records) // 2
                parts.extendleft(
                    {**part, "records": half} for half in (records[middle:], records[:middle])
                )
            else:
                refusals.append(RefusedPart(part, error))
    return refusals


def _divide_record(record: Any) -> list[Any]:
    """Divide a record into two of the same scenario; its winner goes with the second half."""
    measurements = record.get("measurements") or []
    if len(measurements) < 2:
        return [record]
    middle = len(measurements) // 2
    first = {"scenario": record["scenario"], "measurements": measurements[:middle]}
    return [first, {**record, "measurements": measurements[middle:]}]


def _split(document: Document) -> Iterator[Document]:
    """Yield a record set in parts within the limits; a single record is not divided."""
    part: list[Any] = []
    size = 0
    for record in document["records"]:
        length = len(json.dumps(record))
        if part and (len(part) == MOST_RECORDS or size + length > MOST_BYTES):
            yield {**document, "records": part}
            part, size = [], 0
        part.append(record)
        size += length
    if part:
        yield {**document, "records": part}
