"""Long JSON bodies validated item by item: the same values and refusals as in one piece."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from dejavu_service.errors import TooLargeError
from dejavu_service.services import json_items
from dejavu_service.services.json_items import InvalidJsonError, InvalidValueError, validate_json
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json
from support.service import record, record_set

from dejavu_cache.model.record import RecordSet

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**15), 10**15) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.fixture(autouse=True)
def _in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_items, "_SMALL", 0)


def _in_one_piece(text: bytes) -> Any:
    try:
        value = from_json(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _from_pieces(text: bytes) -> Any:
    try:
        pieces = json_items._split(text, "records", 1000)
        value = from_json(pieces.rest)
        if pieces.items:
            value["records"] = [from_json(text[start:end]) for start, end in pieces.items]
    except ValueError:
        return None
    return value


@given(
    st.dictionaries(st.text(), VALUES, max_size=3),
    st.lists(VALUES, max_size=5),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_pieces_are_what_the_parser_reads(
    rest: dict[str, Any], items: list[Any], ascii_only: bool, source: random.Random
) -> None:
    fields = [*rest.items(), ("records", items)]
    source.shuffle(fields)
    text = json.dumps(dict(fields), ensure_ascii=ascii_only, indent=source.choice([None, 1]))
    sent = text.encode("utf-8", "surrogatepass")
    assert _from_pieces(sent) == _in_one_piece(sent)
    damaged = bytearray(sent)
    damaged[source.randrange(len(sent))] = source.choice(b'{}[]",:\\ 1a')
    assert _from_pieces(bytes(damaged)) == _in_one_piece(bytes(damaged))


def test_a_record_set_is_the_same() -> None:
    sent = record_set(*(record(m) for m in range(20)))
    text = sent.model_dump_json(exclude_none=True).encode()
    validated = validate_json(text, RecordSet, "records", 20)
    assert validated.model_copy(update={"records": tuple(validated.records)}) == sent
    assert list(validated.records[3:5]) == list(sent.records[3:5])
    with pytest.raises(TooLargeError, match="over 19 records"):
        validate_json(text, RecordSet, "records", 19)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b'{"records": [0]}', InvalidValueError),
        (b'{"records": 0}', InvalidValueError),
        (b'{"records": [{}], "records": 0}', InvalidValueError),
        (b'{"records": [{"a": [' + b"0," * 300_000 + b"0]}]}", InvalidValueError),
        (b'{"records": [' + b'{"a":' * 5000 + b"}" * 5000 + b"]}", InvalidJsonError),
        (b'{"records": [{"a": "\\u0000"}]}', InvalidJsonError),
        (b'{"records": [{"a": NaN}]}', InvalidJsonError),
        (b'{"records": [{"a": "\xff"}]}', InvalidJsonError),
        (b'{"records": [' + b'"' * 3, InvalidJsonError),
        (b'{"records": [{]}]}', InvalidJsonError),
        (b'{"records": [],}', InvalidJsonError),
        (b"[]", InvalidJsonError),
        (b"{}{}", InvalidJsonError),
        (b"{", InvalidJsonError),
    ],
    ids=range(14),
)
def test_what_is_wrong_is_refused(text: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        validate_json(text, RecordSet, "records", 1000)


def test_few_errors_are_listed_and_the_first_wrong_item_is_the_last_read() -> None:
    record_text = b'{"scenario": {}, "measurements": [' + b"0," * 400 + b"0]}"
    with pytest.raises(InvalidValueError) as raised:
        validate_json(
            b'{"records": [' + record_text + b"," + record_text + b"]}", RecordSet, "records", 9
        )
    assert len(raised.value.errors) == 20
    assert raised.value.count >= 400
    assert {item["loc"][:2] for item in raised.value.errors} == {("records", 0)}
