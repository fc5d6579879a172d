"""Scalars are kept as they are; buckets map them to representatives, and never fail."""

import enum
import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from dejavu_cache.errors import SettingsError
from dejavu_cache.model.buckets import Bucket, Edges, Exact, Multiple, Pow2, parse_bucket
from dejavu_cache.model.scenario import Config, Scenario, is_scalar

ANY_VALUE = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters(), max_size=600)
)


@given(ANY_VALUE)
@example("x" * 500)
@example(2**64 - 1)
@example(-(2**63))
@example(-0.0)
def test_a_scalar_is_kept(value: object) -> None:
    if is_scalar(value):
        for kept in (
            Scenario(args={"n": value}).args["n"],
            Config(params={"n": value}).params["n"],
        ):
            assert (type(kept), kept) == (type(value), value)


class Mode(enum.IntEnum):
    FAST = 3


class Name(str):
    pass


class Half(float):
    pass


@pytest.mark.parametrize("value", [Mode.FAST, Name("x"), Half(0.5)])
def test_values_of_derived_classes_are_kept_as_what_they_derive_from(value: object) -> None:
    assert is_scalar(value)
    assert Config(params={"n": value}).params["n"] == value


@pytest.mark.parametrize(
    "value", [2**64, -(2**63) - 1, float("inf"), float("nan"), "x" * 501, "\ud800", b"", (1,)]
)
def test_other_values_are_no_scalars(value: object) -> None:
    assert not is_scalar(value)


VALUES = st.one_of(st.none(), st.booleans(), st.text(), st.integers(), st.floats(allow_nan=False))
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


COARSE = (Pow2(), Pow2(max=64), Multiple(16))
ENDLESS = (math.inf, -math.inf, math.nan)


@pytest.mark.parametrize(
    ("bucket", "value", "representative"),
    [
        (Pow2(), 32, 32), (Pow2(), 33, 32), (Pow2(), 63, 32), (Pow2(), 0, 0), (Pow2(), -5, -5),
        (Pow2(min=16), 3, 16), (Pow2(max=64), 10**9, 64), (Pow2(), True, True),
        (Pow2(), None, None), (Exact(), 33, 33), (Multiple(16), 31, 16), (Multiple(16), 3, 16),
        (Edges([1, 16, 256]), 15, 1), (Edges([1, 16, 256]), 16, 16), (Edges([1, 16, 256]), -3, 1),
        (Edges([1, 16]), -math.inf, 1), (Edges([1, 16]), math.inf, 16),
        (Edges([1, 16]), math.nan, math.nan),
        *((bucket, endless, endless) for bucket in COARSE for endless in ENDLESS),
    ],
)  # fmt: skip
def test_the_representative_is_the_largest_step_not_above(
    bucket: Bucket, value: object, representative: object
) -> None:
    assert bucket(value) is representative or bucket(value) == representative


@pytest.mark.parametrize(
    "make",
    [
        lambda: Pow2(min=100),
        lambda: Pow2(min=8, max=4),
        lambda: Pow2("16"),
        lambda: Pow2(16.0),
        lambda: Pow2(min=-1),
        lambda: Pow2(mn=1),
        lambda: Edges([]),
        lambda: Edges([16, 1]),
        lambda: Edges(1, 16),
        lambda: Edges([1, "16"]),
        lambda: Multiple(0),
        lambda: Multiple(),
        lambda: Exact(3),
    ],
)
def test_a_senseless_bucket_is_refused(make: Any) -> None:
    with pytest.raises((ValidationError, TypeError)):
        make()


@pytest.mark.parametrize("spec", [16, Pow2, {"max": 4}, "powr2", "edges", {"kind": "pow2", "x": 1}])
def test_what_spells_no_bucket_is_refused_in_one_line(spec: Any) -> None:
    with pytest.raises(SettingsError, match=r"is no bucket, such as Multiple\(16\)") as refused:
        parse_bucket(spec)
    assert "\n" not in str(refused.value)
