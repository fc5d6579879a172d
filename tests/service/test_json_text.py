"""JSON texts from clients: what is taken, what is refused, and what refusing costs."""

from __future__ import annotations

import json
import time
import tracemalloc

import pytest
from dejavu_service.errors import TooLargeError
from dejavu_service.services.json_text import InvalidJsonError, InvalidValueError, validate_json
from hypothesis import given
from hypothesis import strategies as st

from dejavu_cache.model.record import RecordSet

MIB = 2**20


@given(st.text(alphabet='\\u0"\x00', max_size=12))
def test_an_escaped_nul_is_told_from_escaped_backslashes(value: str) -> None:
    with pytest.raises(InvalidJsonError if "\x00" in value else InvalidValueError):
        validate_json(json.dumps({"value": value}).encode(), RecordSet)


@pytest.mark.parametrize(
    "text",
    [
        b'{"c":"' + b"\\" * (4 * MIB) + b'u0001 \\\\u0000"}',
        b'{"context":' + b"[" * (4 * MIB),
        b'{"records":[' + b"{}," * 49_000 + b"{}]}",
        b'{"records":[' + b"[]," * 49_000 + b"[]]}",
        b'"' + b'\\"' * (2 * MIB),
    ],
    ids=["backslashes", "brackets", "objects", "arrays", "quotes"],
)
def test_a_hostile_text_takes_a_bounded_share_of_memory_and_time(text: bytes) -> None:
    tracemalloc.start()
    began = time.process_time()
    with pytest.raises((InvalidJsonError, InvalidValueError, TooLargeError)):
        validate_json(text, RecordSet)
    seconds, (_, peak) = time.process_time() - began, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 * MIB
    assert seconds < 10  # what needs a square of its length would take hours


def test_few_errors_are_listed_and_the_others_are_not_kept() -> None:
    text = b'{"records": [{"scenario": {}, "measurements": [' + b"0," * 400 + b"0]}]}"
    with pytest.raises(InvalidValueError) as raised:
        validate_json(text, RecordSet)
    assert raised.value.__context__ is None
    assert len(raised.value.errors) == 20
    assert raised.value.count >= 400
