"""Attention that an engine tunes when it starts: which batches, over which cases, how long."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.attention_batches import REFUSED_MASK
from support.fork_server import kernel_nursery
from support.forked_processes import worker_starter

from dejavu_cache.attention.kernels import hopper
from dejavu_cache.attention.sweep_suite import Lengths, Model, kernel_of, scenario_arguments
from dejavu_cache.engines.vllm import attention_suite
from dejavu_cache.engines.vllm.attention_suite import (
    draw_lengths,
    drawn_batches,
    launch_batch,
    suite,
    suite_options,
    tune_attention,
    tuned_call,
    untuned_batches,
)
from dejavu_cache.engines.vllm.planned_attention import (
    ExpectedBatch,
    LayerFeatures,
    LayerShape,
    ServingLimits,
    batches_to_expect,
    made_up_step,
    plan_layer,
)
from dejavu_cache.runtime.request import Request
from dejavu_cache.settings import current_settings
from dejavu_cache.stores import FileStore, open_store
from dejavu_cache.stores.urls import default_store
from dejavu_cache.sweep import hosts
from dejavu_cache.sweep.suite import Case
from dejavu_cache.system import worker_process

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="tests the host's part, interpreted"),
]

CPU = torch.device("cpu")
SHAPE = LayerShape(2, 1, 16, 16, torch.float16, torch.float16)
FEATURES = LayerFeatures(0.25, (-1, -1), 0.0)
LIMITS = ServingLimits(max_requests=2, max_tokens=8, max_context=300)
FEW = replace(LIMITS, max_context=64)
"""Two scenarios with a choice; they take seconds in the interpreter."""


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., int]]:
    """Return a function that tunes as a start with some variables does; workers are forked."""
    monkeypatch.setattr(
        worker_process, "start_process", worker_starter(kernel_nursery("1").address, "1")
    )
    monkeypatch.setenv("DEJAVU_CACHE_SHIPPED", "0")

    def start(limits: ServingLimits = LIMITS, **variables: str) -> int:
        for name, value in variables.items():
            monkeypatch.setenv(f"DEJAVU_CACHE_{name}", value)
        forget()
        return tune_attention(SHAPE, FEATURES, limits, CPU)

    yield start
    monkeypatch.undo()
    forget()


def forget() -> None:
    """Begin as a new process: with unread settings, all time left and no choices."""
    current_settings.cache_clear()
    default_store.cache_clear()
    attention_suite._deadline.cache_clear()
    for name in ("qblock", "segmented"):
        kernel = kernel_of(name)
        kernel._resolvers.clear()
        kernel.configs = kernel.configs


def request_of(shape: LayerShape, features: LayerFeatures, batch: ExpectedBatch) -> Request:
    """Return what the launch of a batch asks the store for."""
    call = tuned_call(plan_layer(*made_up_step(shape, features, batch, CPU)))
    assert call is not None
    request: Request = call.kernel.request(*call.args, grid=call.grid, warmup=False, **call.kwargs)
    return request


def requests_with_a_choice(limits: ServingLimits) -> list[Request]:
    requests = [request_of(SHAPE, FEATURES, batch) for batch in batches_to_expect(limits)]
    return [request for request in requests if not request.has_no_choice]


def scenarios_with_a_choice(limits: ServingLimits) -> set[tuple[str, str]]:
    """Return the scenarios of the batches to expect, with their kernels."""
    return {
        (request.context.kernel.name, request.scenario.text)
        for request in requests_with_a_choice(limits)
    }


def benchmarked() -> int:
    """Return how many configs this process has benchmarked, in other tests too."""
    return sum(kernel_of(name).benchmarked for name in ("qblock", "segmented"))


def records() -> dict[tuple[str, str], Any]:
    store = open_store(current_settings().url)
    return {
        (context.kernel.name, record.scenario.text): record
        for context in store.contexts()
        for record in store.records(context)
    }


@REFUSED_MASK
def test_what_a_start_has_tuned_it_launches_and_does_not_miss(
    start: Callable[..., int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    missed: list[Any] = []
    monkeypatch.setattr(FileStore, "miss", lambda store, *miss: missed.append(miss))
    before = benchmarked()
    with caplog.at_level(logging.INFO, "dejavu_cache"):
        tuned = start(FEW, WARMUP_SECONDS="500")
    assert f"attention was tuned for {tuned} of {tuned} kinds" in caplog.text
    found = records()
    assert found.keys() == scenarios_with_a_choice(FEW)
    assert all(record.winner is not None for record in found.values())
    cases = [max(len(m.cases or ()) for m in record.measurements) for record in found.values()]
    assert max(cases) == attention_suite.CASES
    assert benchmarked() == before, "the engine's own process benchmarks nothing"
    for batch in batches_to_expect(FEW):
        launch_batch(SHAPE, FEATURES, batch, CPU)
    assert missed == []
    assert start(FEW, WARMUP_SECONDS="500") == 0, "a second start has nothing to tune"


@pytest.mark.parametrize(
    "variables",
    [{}, {"WARMUP_SECONDS": "0"}, *({"WARMUP_SECONDS": "9", "MODE": m} for m in ("reuse", "off"))],
    ids=str,
)
def test_nothing_is_tuned_unless_somebody_has_asked_for_it(
    start: Callable[..., int], variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "start_process", lambda *_: pytest.fail("it tunes"))
    assert start(**variables) == 0


def test_where_the_hopper_kernel_serves_nothing_is_tuned(
    start: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dejavu_cache.attention.api.choose", lambda batch: "hopper")
    monkeypatch.setattr(hopper, "make_schedule", lambda batch, overlap: None)
    monkeypatch.setattr(worker_process, "start_process", lambda *_: pytest.fail("it tunes"))
    assert start(WARMUP_SECONDS="100") == 0


@REFUSED_MASK
def test_what_the_time_does_not_suffice_for_goes_on_the_worklist(
    start: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    missed: list[Any] = []
    monkeypatch.setattr(FileStore, "miss", lambda store, *miss: missed.append(miss))
    tuned = start(WARMUP_SECONDS="0.2")
    left = untuned_batches(SHAPE, FEATURES, LIMITS, CPU)
    assert len(left) > tuned
    for batch in batches_to_expect(LIMITS):
        launch_batch(SHAPE, FEATURES, batch, CPU)
    listed = {(context.kernel.name, scenario.text) for context, scenario in missed}
    assert listed == scenarios_with_a_choice(LIMITS) - records().keys()


@REFUSED_MASK
def test_another_process_s_scenario_is_waited_for_no_longer_than_the_limit(
    start: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEJAVU_CACHE_TUNE_WAIT", "3600")
    request, *_ = requests_with_a_choice(FEW)
    forget()
    store = open_store(current_settings().url)
    with store.lease(request.context, request.scenario, wait=0.0) as is_leased:
        assert is_leased
        assert start(FEW, WARMUP_SECONDS="10") > 0, "the other scenarios are tuned meanwhile"
    assert (request.context.kernel.name, request.scenario.text) not in records()
    assert start(FEW, WARMUP_SECONDS="100") > 0, "the next start goes on"
    assert records().keys() == scenarios_with_a_choice(FEW)


@pytest.mark.parametrize("hanging", ["at import", "at its first case"])
def test_a_worker_that_hangs_is_stopped(
    start: Callable[..., int], hanging: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = tmp_path / "hanging.py"
    wait = "time.sleep(3600)"
    case = f"Case('one', None, None, lambda: {wait})"
    suite.write_text(
        "import time\nfrom dejavu_cache.sweep.suite import Case\n"
        f"{wait if hanging == 'at import' else ''}\n"
        f"def suite(**options):\n    yield {case}\n"
    )
    monkeypatch.setattr(attention_suite, "SUITE", str(suite))
    for module in (attention_suite, hosts):
        monkeypatch.setattr(module, "GRACE", 0.5)
    assert start(WARMUP_SECONDS="2") == 0


@REFUSED_MASK
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"URL": "memory://"}, "keeps no records"),
        ({"suite": "dejavu_cache.no_such_suite"}, "no_such_suite"),
        ({"start": "fails"}, "no processes left"),
    ],
    ids=lambda value: str(value),
)
def test_any_fault_is_one_line_and_the_engine_starts(
    start: Callable[..., int],
    fault: dict[str, str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: Any) -> Any:
        raise OSError("no processes left")

    if "suite" in fault:
        monkeypatch.setattr(attention_suite, "SUITE", fault["suite"])
    if "start" in fault:
        monkeypatch.setattr(worker_process, "start_process", fail)
    url = {"URL": fault["URL"]} if "URL" in fault else {}
    assert start(WARMUP_SECONDS="60", **url) == 0
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(lines) == 1
    assert said in lines[0]
    assert "was not tuned at this start" in lines[0]
    launch_batch(SHAPE, FEATURES, batches_to_expect(LIMITS)[0], CPU)


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({}, "1"),
        ({"CUDA_VISIBLE_DEVICES": "3,5"}, "5"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-aa,MIG-bb"}, "MIG-bb"),
        ({"HIP_VISIBLE_DEVICES": "2,6"}, "6"),
    ],
    ids=str,
)
def test_the_other_process_gets_the_engine_s_gpu(
    variables: dict[str, str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    assert set(hosts.single_gpu(1).values()) == {name}


FEATURED = [
    (SHAPE, FEATURES),
    (
        LayerShape(4, 2, 32, 32, torch.float16, torch.float8_e4m3fn, (0, 2, 1, 3)),
        LayerFeatures(0.2, (15, 0), 5.0, torch.ones(4), torch.zeros(4, dtype=torch.bfloat16)),
    ),
]


@pytest.mark.parametrize(("shape", "features"), FEATURED, ids=["plain", "featured"])
def test_the_cases_have_the_scenarios_that_the_engine_launches(
    shape: LayerShape, features: LayerFeatures
) -> None:
    limits = ServingLimits(max_requests=6, max_tokens=128, max_context=700, decoded_at_once=2)
    expected = batches_to_expect(limits)
    only = list(range(0, len(expected), 5))
    launched = set()
    for number in only:
        request = request_of(shape, features, expected[number])
        if not request.has_no_choice:
            launched.add((request.context.kernel.name, request.scenario))
    cases = suite.load_cases(suite_options(shape, features, limits, only))
    assert [case.name for case in cases] == [
        case.name for case in suite.load_cases(suite_options(shape, features, limits, only))
    ], "drawn alike in every process"
    per_scenario = Counter(map(check_case, cases))
    assert per_scenario.keys() == launched
    assert sorted(per_scenario.values())[len(per_scenario) // 4] == attention_suite.CASES


def check_case(case: Case) -> tuple[str, Any]:
    """Return a case's kernel and scenario, and check that its requests share no block."""
    arguments = dict(case.arguments())
    table, used = arguments["block_table"], arguments["seqused_k"].tolist()
    page = arguments["PAGE"]
    blocks = [
        block
        for row, tokens in zip(table.tolist(), used, strict=True)
        for block in row[: math.ceil(tokens / page)]
    ]
    assert sorted(blocks) == list(range(len(arguments["k_cache"])))
    request = case.kernel.request(grid=case.grid, warmup=False, **arguments)
    return request.context.kernel.name, request.scenario


@given(
    limits=st.builds(
        ServingLimits,
        max_requests=st.integers(1, 300),
        max_tokens=st.sampled_from([512, 2048, 8192]),
        max_context=st.one_of(st.integers(64, 9000), st.sampled_from([16384, 131072])),
        decoded_at_once=st.integers(1, 5),
    ),
    number=st.integers(0, 1 << 20),
    seed=st.integers(0, 60),
    most_tokens=st.integers(64, 1 << 20),
)
def test_drawn_lengths_stay_within_the_engine_s_limits_and_the_memory(
    limits: ServingLimits, number: int, seed: int, most_tokens: int
) -> None:
    limits = replace(limits, max_requests=min(limits.max_requests, limits.max_tokens))
    expected = batches_to_expect(limits)
    batch = expected[number % len(expected)]
    drawn = draw_lengths(batch, limits, most_tokens, seed)
    if drawn is None:
        assert 2 * sum(batch.new) + limits.max_context > most_tokens
        return
    totals = [new + past for new, past in zip(drawn.new, drawn.past, strict=True)]
    assert min(drawn.new) >= 1
    assert min(drawn.past) >= 0
    assert len(drawn.new) <= limits.max_requests
    assert sum(drawn.new) <= limits.max_tokens
    assert max(totals) <= drawn.longest <= limits.max_context
    assert sum(totals) <= most_tokens
    assert drawn == draw_lengths(batch, limits, most_tokens, seed)


@pytest.mark.parametrize(
    "limits",
    [
        ServingLimits(64, 8192, 16384),
        ServingLimits(256, 8192, 131072),
        ServingLimits(256, 2048, 8192, decoded_at_once=4),
        ServingLimits(1, 512, 100),
    ],
    ids=lambda limits: f"{limits.max_requests} requests",
)
def test_each_batch_to_expect_is_drawn_several_times(limits: ServingLimits) -> None:
    form = Model(32, 8, 128), 16, torch.bfloat16, 1
    counts = []
    for batch in batches_to_expect(limits):
        past = [batch.context - batch.new[0], *[0] * (len(batch.new) - 1)]
        wanted = scenario_arguments("qblock", Lengths("", batch.new, past), form)
        drawn = drawn_batches("qblock", wanted, batch, limits, form)
        counts.append(len({lengths.name for lengths in drawn}))
        for lengths in drawn:
            assert scenario_arguments("qblock", lengths, form) == wanted
    assert min(counts) >= 1, "a step that is full of prompts alike has one batch"
    assert sum(count == attention_suite.CASES for count in counts) >= 0.75 * len(counts)


def test_contexts_are_as_unequal_as_in_traffic() -> None:
    limits = ServingLimits(64, 8192, 16384)
    eager, graph = (
        next(b for b in batches_to_expect(limits) if len(b.new) == 64 and b.context == context)
        for context in (4096, 16384)
    )
    drawn = draw_lengths(eager, limits, 1 << 20, 0)
    assert drawn is not None
    assert drawn.longest == max(map(sum, zip(drawn.new, drawn.past, strict=True)))
    contexts = sorted(drawn.past)
    assert contexts[32] < 0.6 * contexts[-1]
    assert len(set(contexts)) > 40
    replayed = [draw_lengths(graph, limits, 1 << 20, seed) for seed in range(3)]
    assert [lengths and lengths.longest for lengths in replayed] == [16384] * 3
    assert [lengths and max(lengths.past) + 1 for lengths in replayed] == [16384, 4096, 1024]
