"""Buckets map values to representatives and never fail on a launch's values."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from dejavu_cache.errors import SettingsError
from dejavu_cache.model.buckets import Bucket, Edges, Exact, Multiple, Pow2, parse_bucket

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.text(),
    st.integers(),
    st.floats(allow_nan=False),
)
BUCKETS = st.one_of(
    st.just(Exact()),
    st.builds(
        lambda low, span: Pow2(min=2**low, max=2 ** (low + span)),
        st.integers(0, 10),
        st.integers(0, 10),
    ),
    st.builds(lambda edges: Edges(sorted(edges)), st.sets(st.integers(-1000, 1000), min_size=1)),
    st.builds(Multiple, st.integers(1, 512)),
)


@given(BUCKETS, VALUES)
def test_a_representative_represents_itself(bucket: Bucket, value: object) -> None:
    """Mapping twice is mapping once, so a record's scenario finds itself."""
    once = bucket(value)
    assert bucket(once) == once


@given(BUCKETS, st.integers(0, 10**6), st.integers(0, 10**6))
def test_buckets_keep_the_order_of_numbers(bucket: Bucket, left: int, right: int) -> None:
    low, high = sorted((left, right))
    assert bucket(low) <= bucket(high)


@given(BUCKETS)
def test_buckets_survive_json(bucket: Bucket) -> None:
    adapter = TypeAdapter(Bucket)
    assert adapter.validate_json(adapter.dump_json(bucket)) == bucket


@pytest.mark.parametrize(
    ("bucket", "value", "representative"),
    [
        (Pow2(), 32, 32),
        (Pow2(), 33, 32),
        (Pow2(), 63, 32),
        (Pow2(), 0, 0),
        (Pow2(), -5, -5),
        (Pow2(min=16), 3, 16),
        (Pow2(max=64), 10**9, 64),
        (Pow2(), True, True),
        (Pow2(), None, None),
        (Edges([1, 16, 256]), 15, 1),
        (Edges([1, 16, 256]), 16, 16),
        (Edges([1, 16, 256]), -3, 1),
        (Multiple(16), 31, 16),
        (Multiple(16), 3, 16),
        (Exact(), 33, 33),
    ],
)
def test_the_representative_is_the_largest_step_not_above(
    bucket: Bucket, value: object, representative: object
) -> None:
    assert bucket(value) is representative or bucket(value) == representative


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Pow2(min=100), "Pow2(min=100): min=100 is not a power of two: give 64 or 128"),
        (lambda: Pow2(min=8, max=4), "min=8 is above max=4: exchange them"),
        (lambda: Pow2("16"), "Pow2('16'): min and max are powers of two: Pow2(min=16, max=4096)"),
        (lambda: Pow2(16.0), "Pow2(16.0): min and max are powers of two"),
        (lambda: Pow2(min=-1), "Pow2(min=-1): min and max are powers of two"),
        (lambda: Pow2(mn=1), "Pow2(mn=1): it has no 'mn': did you mean 'min'?"),
        (lambda: Edges([]), "Edges([]): give one list of finite numbers that increase: Edges([1, "),
        (lambda: Edges([16, 1]), "they do not increase strictly: give [1, 16]"),
        (lambda: Edges(1, 16), "Edges(1, 16): give one list"),
        (lambda: Edges("16"), "Edges('16'): give one list"),
        (lambda: Edges([1, "16"]), "Edges([1, '16']): give one list"),
        (lambda: Edges(), "Edges(): give one list"),
        (lambda: Multiple(0), "Multiple(0): n is one whole number, 1 or more: Multiple(16)"),
        (lambda: Multiple(), "Multiple(): n is one whole number"),
        (lambda: Multiple([16]), "Multiple([16]): n is one whole number"),
        (lambda: Exact(3), "Exact(3): it takes no argument: Exact()"),
        (lambda: parse_bucket(16), "16 is no bucket: give one such as Multiple(16), Pow2("),
        (lambda: parse_bucket(Pow2), "Pow2'> is no bucket: give one such as"),
        (lambda: parse_bucket({"max": 4}), "{'max': 4} is no bucket: give one such as"),
        (lambda: parse_bucket("powr2"), "no bucket is called 'powr2': did you mean 'pow2'?"),
        (lambda: parse_bucket("edges"), "give one list of finite numbers"),
    ],
)
def test_a_senseless_bucket_is_refused_in_one_sentence(make: Any, says: str) -> None:
    with pytest.raises(SettingsError) as refused:
        make()
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@given(
    st.integers(1, 10**6),
    st.sampled_from([Pow2(), Pow2(min=8), Multiple(16), Edges([1, 100, 10**6]), Exact()]),
)
def test_what_is_above_holds_the_value_and_is_a_step(value: int, bucket: Pow2) -> None:
    above = bucket.above(value)
    assert above is not None
    assert above >= value
    assert bucket(above) == above
    assert bucket.above(above) == above


def test_above_the_last_step_there_is_none() -> None:
    assert (Pow2(max=64).above(65), Edges([1, 8]).above(9)) == (None, None)


@pytest.mark.parametrize("bucket", [Pow2(), Pow2(max=64), Multiple(16)])
@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_infinity_stays_as_it_is(bucket: Bucket, value: float) -> None:
    assert bucket(value) == value
    assert math.isnan(bucket(math.nan))


def test_infinity_has_an_edge_below_it() -> None:
    edges = Edges((1, 16))
    assert (edges(-math.inf), edges(math.inf)) == (1, 16)
    assert math.isnan(edges(math.nan))
