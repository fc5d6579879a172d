"""What counts as a scalar is what records keep as it is."""

from __future__ import annotations

import enum

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dejavu_cache.model.scenario import Config, Scenario, is_scalar

VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters(), max_size=600)
)


@given(VALUES)
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
