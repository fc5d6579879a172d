"""What counts as a scalar is what records keep as it is."""

from __future__ import annotations

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


@pytest.mark.parametrize(
    "value", [2**64, -(2**63) - 1, float("inf"), float("nan"), "x" * 501, "\ud800", b"", (1,)]
)
def test_other_values_are_no_scalars(value: object) -> None:
    assert not is_scalar(value)
