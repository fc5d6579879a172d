"""The attention suite makes a case of what programs met, and tunes what `auto` launches."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dejavu_cache.attention import api, sweep_suite
from dejavu_cache.attention.kernels import hopper as hopper_kernel
from dejavu_cache.attention.sweep_suite import PRESETS, Lengths, Model, case_of, lengths, suite
from dejavu_cache.errors import SettingsError
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
        {"args": {"KV_HEADS": 2, "avg_query": 1 << 14, "num_seqs": 1 << 60}},
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


LLAMA = (PRESETS["llama3-8b"], 16, torch.bfloat16)


def implementations(**options: str) -> set[str]:
    """Return the implementations of the suite's cases."""
    return {case.name.split()[0] for case in suite.load_cases(options)}


def choose(composition: Lengths, model: Model = LLAMA[0]) -> str:
    """Return what `auto` takes for a batch."""
    return api.choose(sweep_suite.outline(composition, (model, *LLAMA[1:]), "cpu"))


@pytest.fixture(params=[108, 132])
def sms(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the GPU a number of multiprocessors, and no Hopper kernel."""
    monkeypatch.setattr(api, "num_sms", lambda device: request.param)
    monkeypatch.setattr(hopper_kernel, "suits", lambda batch: False)


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `auto` give batches of bfloat16 queries and caches to the Hopper kernel."""
    monkeypatch.setattr(hopper_kernel, "suits", lambda batch: batch.k_cache.dtype == torch.bfloat16)


@pytest.mark.usefixtures("sms")
def test_only_what_auto_takes_is_tuned() -> None:
    assert implementations() == {"qblock", "segmented"}
    names = {case.name for case in suite.load_cases({})}
    assert names == {f"{choose(composition)} {composition.name}" for composition in lengths()}
    assert {"segmented decode 1 x 32768", "qblock prefill 1 x 4096"} < names


@pytest.mark.usefixtures("hopper")
def test_beside_the_hopper_kernel_which_has_one_config_only_other_caches_are_tuned() -> None:
    assert implementations(cache="float8_e4m3fn") <= {"qblock", "segmented"}
    assert len(suite.load_cases({"cache": "float8_e4m3fn"})) >= len(list(lengths()))
    assert suite.load_cases({}) == suite.load_cases({"cache": "bfloat16"}) == []
    assert "hopper and few_sequences" in suite.why_empty


@pytest.mark.usefixtures("hopper")
def test_only_tunes_an_implementation_for_all_batches_whatever_auto_takes() -> None:
    cases = suite.load_cases({"only": "static_grid+segmented"})
    assert len(cases) == 2 * len(list(lengths()))
    assert implementations(only="static_grid+segmented") == {"static_grid", "segmented"}


def test_options_describe_a_model_without_a_preset_and_its_cache() -> None:
    options = {"preset": "6/2/64", "dtype": "float16", "cache": "float8_e4m3fn"}
    arguments = suite.load_cases({**options, "batches": "decode"})[0].arguments()
    assert arguments["q"].shape[1:] == (6, 64)
    assert arguments["k_cache"].dtype == torch.float8_e4m3fn
    assert arguments["k_scale"] is not None


@pytest.mark.parametrize(
    ("option", "value", "remedy"),
    [
        ("preset", "6/2", "6/2"),
        ("only", "hopper", "choose from segmented, qblock, static_grid, naive"),
        ("batches", "decoding", "choose from decode, prefill, mixed, chunked"),
        ("batches", "decode+", "choose from decode, prefill, mixed, chunked"),
        ("cache", "fp8", "choose bfloat16 or one of float8_e4m3fn"),
        ("cache", "float16", "choose bfloat16 or one of float8_e4m3fn"),
    ],
)
def test_an_option_that_is_unknown_is_refused_with_what_there_is(
    option: str, value: str, remedy: str
) -> None:
    with pytest.raises(SettingsError, match=remedy):
        suite.load_cases({option: value})
