"""The attention suite makes a case of what programs met, whatever that was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dejavu_cache.attention.sweep_suite import Lengths, Model, case_of, suite
from dejavu_cache.model.scenario import Scenario
from dejavu_cache.sweep.suite import Case

KERNELS = {
    "naive": "dejavu_cache.attention.kernels.naive.naive_kernel",
    "qblock": "dejavu_cache.attention.kernels.qblock.qblock_kernel",
    "segmented": "dejavu_cache.attention.kernels.segmented.segment_kernel",
}
"""Those that programs miss; `auto` launches no `static_grid`."""

DECODING = st.tuples(st.just(1), st.integers(0, 600))
PROMPT = st.tuples(st.integers(1, 300), st.just(0))
CHUNK = st.tuples(st.integers(1, 100), st.integers(0, 600))
BATCHES = st.lists(DECODING | PROMPT | CHUNK, min_size=1, max_size=12) | st.lists(
    DECODING, min_size=1, max_size=40
)

MODELS = st.builds(
    Model,
    query_heads=st.sampled_from((4, 8)),
    kv_heads=st.sampled_from((1, 2, 4)),
    head_size=st.just(16),
    window=st.sampled_from((-1, 0, 100)),
    sinks=st.sampled_from(("", "float32", "bfloat16")),
    alibi=st.sampled_from(("", "float32")),
    softcap=st.sampled_from((0.0, 5.0)),
    cache=st.sampled_from(("", "float8_e4m3fn")),
    has_scales=st.booleans(),
)


def kernel_and_scenario(case: Case) -> tuple[str, Scenario]:
    """Return the kernel's name and the scenario of a launch of the case."""
    request = case.kernel.request(grid=case.grid, warmup=False, **case.arguments())
    return request.context.kernel.name, request.scenario


@given(
    st.sampled_from(sorted(KERNELS)),
    BATCHES,
    MODELS,
    st.sampled_from((8, 16)),
    st.sampled_from((torch.float16, torch.float32)),
)
def test_a_case_made_for_a_scenario_has_this_scenario(
    implementation: str,
    sequences: list[tuple[int, int]],
    model: Model,
    page: int,
    dtype: torch.dtype,
) -> None:
    lengths = Lengths("met", [new for new, _ in sequences], [past for _, past in sequences])
    kernel, scenario = kernel_and_scenario(case_of(implementation, lengths, (model, page, dtype)))
    assert kernel == KERNELS[implementation]
    made = suite.cases_for(kernel, scenario)
    assert made, f"no case for {scenario}"
    for case in made:
        assert kernel_and_scenario(case) == (kernel, scenario)


@pytest.mark.parametrize(
    "change",
    [
        {"args": {"decode_share": 100, "avg_query": 2}},
        {"args": {"KV_HEADS": 2, "avg_query": 1 << 14}},
    ],
)
def test_a_scenario_that_the_suite_has_no_batch_for_has_no_case(change: dict[str, Any]) -> None:
    lengths = Lengths("met", [1, 1], [100, 100])
    kernel, scenario = kernel_and_scenario(
        case_of("qblock", lengths, (Model(4, 1, 16), 16, torch.float16))
    )
    assert len(suite.cases_for(kernel, scenario)) == 1
    other = {
        name: {**values, **change.get(name, {})} for name, values in scenario.model_dump().items()
    }
    assert suite.cases_for(kernel, Scenario.model_validate(other)) == []


def test_a_kernel_of_somebody_else_has_no_case() -> None:
    assert suite.cases_for("theirs.module.kernel", Scenario(args={"n": 1})) == []
