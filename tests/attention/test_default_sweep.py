"""A sweep of the attention suite tunes what `auto` launches on the GPU, unless it is told to."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from dejavu_cache.attention import api, sweep_suite
from dejavu_cache.attention.kernels import hopper as hopper_kernel
from dejavu_cache.attention.search_space import BUCKETS
from dejavu_cache.attention.sweep_suite import (
    PRESETS,
    Lengths,
    Model,
    auto_choices,
    lengths,
    scenario_arguments,
    suite,
)
from dejavu_cache.errors import SettingsError
from dejavu_cache.triton_internals.versions import COVERED

LLAMA = (PRESETS["llama3-8b"], 16, torch.bfloat16, 1)

SHARES = st.floats(0, 1, exclude_max=True)


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
    assert {f"{choose(composition)} {composition.name}" for composition in lengths()} <= names
    assert "segmented decode 1 x 32768" in names
    assert "qblock decode 1 x 32768" not in names
    assert "qblock prefill 1 x 4096" in names
    assert "segmented prefill 1 x 4096" not in names
    assert len(names) < len(list(lengths())) + 10


@pytest.mark.usefixtures("sms")
@settings(suppress_health_check=[HealthCheck.filter_too_much])
@given(
    st.sampled_from([*PRESETS.values()]),
    st.sampled_from(list(lengths())),
    st.tuples(SHARES, SHARES, SHARES),
)
def test_every_batch_of_a_swept_scenario_finds_its_kernel_tuned(
    model: Model, composition: Lengths, more: tuple[float, float, float]
) -> None:
    """More sequences, new tokens and context than in the sweep's batch do not leave its buckets."""
    pattern = composition.new
    count = int(len(pattern) * (1 + more[0]))
    new = [int((pattern[index % len(pattern)] - 1) * (1 + more[1])) + 1 for index in range(count)]
    context = max(int(BUCKETS["max_context"](composition.longest) * (1 + more[2])), *new)
    met = Lengths("met", new, [context - tokens for tokens in new])
    shape = (model, *LLAMA[1:])
    same = [scenario_arguments("qblock", batch, shape) for batch in (composition, met)]
    assume(same[0] == same[1])
    assert choose(met, model) in auto_choices(composition, shape)


@pytest.mark.parametrize("sms", [132], indirect=True)
@pytest.mark.parametrize(
    ("name", "kv_heads", "few", "many"),
    [
        ("decode 32 x 512", 8, (32, 600), (60, 600)),
        ("decode 64 x 1024", 10, (64, 2000), (64, 1100)),
    ],
)
def test_kernels_that_share_a_scenario_are_both_tuned(
    sms: None, name: str, kv_heads: int, few: tuple[int, int], many: tuple[int, int]
) -> None:
    """Some sequences and contexts of a scenario have the programs to fill an H200, some do not."""
    (composition,) = (one for one in lengths() if one.name == name)
    model = Model(4 * kv_heads, kv_heads, 128)
    met = [Lengths("met", [1] * count, [context - 1] * count) for count, context in (few, many)]
    assert [choose(batch, model) for batch in met] == ["segmented", "qblock"]
    assert auto_choices(composition, (model, *LLAMA[1:])) == {"segmented", "qblock"}


@pytest.mark.usefixtures("sms")
def test_few_tokens_of_one_head_are_tuned_for_both_rules() -> None:
    """With one query head per KV head, 16 tokens are as few rows as in decoding, and 17 are not."""
    (composition,) = (one for one in lengths() if one.name == "prefill 1 x 16")
    model = PRESETS["opt-1.3b"]
    assert choose(composition, model) == "segmented"
    assert auto_choices(composition, (model, *LLAMA[1:])) == {"segmented", "qblock"}


@pytest.mark.usefixtures("hopper")
def test_where_auto_takes_what_has_one_config_nothing_is_left_to_tune() -> None:
    assert suite.load_cases({}) == []
    assert "hopper and few_sequences" in suite.why_empty


@pytest.mark.usefixtures("hopper")
def test_what_the_hopper_kernel_does_not_cover_is_tuned_beside_it() -> None:
    assert implementations(cache="float8_e4m3fn") <= {"qblock", "segmented"}
    assert len(suite.load_cases({"cache": "float8_e4m3fn"})) >= len(list(lengths()))
    assert suite.load_cases({"cache": "bfloat16"}) == []


@pytest.mark.usefixtures("hopper")
def test_only_tunes_an_implementation_for_all_batches_whatever_auto_takes() -> None:
    cases = suite.load_cases({"only": "static_grid+segmented"})
    assert len(cases) == 2 * len(list(lengths()))
    assert implementations(only="static_grid+segmented") == {"static_grid", "segmented"}
    if COVERED:
        assert implementations(only="hopper") == {"hopper"}
    else:
        with pytest.raises(SettingsError, match=r"hopper takes Triton 3\.6"):
            suite.load_cases({"only": "hopper"})


@pytest.mark.usefixtures("hopper")
def test_misses_and_checks_of_winners_see_kernels_that_auto_does_not_take() -> None:
    seen = {case.name.split()[0] for case in suite.load_all_cases({})}
    assert seen == {"naive", "qblock", "segmented", "static_grid"}


def test_a_case_of_a_float8_cache_has_scales() -> None:
    options = {"dtype": "float16", "cache": "float8_e4m3fn", "batches": "decode"}
    case = suite.load_cases(options)[0]
    arguments = case.arguments()
    assert arguments["k_cache"].dtype == torch.float8_e4m3fn
    assert arguments["k_scale"] is not None


@pytest.mark.parametrize("batches", ["decoding", "decode+"])
def test_a_kind_of_batches_that_is_unknown_is_refused(batches: str) -> None:
    with pytest.raises(SettingsError, match="choose from decode, prefill, mixed, chunked"):
        suite.load_cases({"batches": batches})


@pytest.mark.parametrize("cache", ["fp8", "float16"])
def test_a_dtype_that_no_cache_may_have_is_refused(cache: str) -> None:
    with pytest.raises(SettingsError, match="choose bfloat16 or one of float8_e4m3fn"):
        suite.load_cases({"cache": cache})
