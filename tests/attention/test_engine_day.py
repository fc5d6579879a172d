"""The simulated scheduler makes batches as an engine does, and misses are counted rightly."""

from __future__ import annotations

import random
import sys
from itertools import islice

import pytest
from support.processes import ROOT

from dejavu_cache.attention.sweep_suite import PRESETS

sys.path.insert(0, str(ROOT / "benchmarks"))
import engine_day  # type: ignore[import-not-found]
from engine_day import Day, Sequence, Step, graph_of, schedule, simulate

MODEL = PRESETS["llama3-8b"]


@pytest.mark.parametrize(("budget", "length"), [(2048, 8192), (8192, 131072)])
def test_a_step_keeps_the_budget_and_the_models_length(budget: int, length: int) -> None:
    steps = list(simulate(seed=1, budget=budget, model_length=length, load=20.0, steps=200))
    assert len(steps) == 200
    assert steps == list(simulate(1, budget, length, 20.0, 200))
    assert any(max(step.new) == 1 for step in steps), "some steps only decode"
    assert any(max(step.new) > 1 for step in steps), "some have prompts"
    for step in steps:
        assert 0 < sum(step.new) <= budget
        assert len(step.new) <= engine_day.MOST_SEQUENCES
        assert max(step.totals) == step.longest <= length
        assert all(new <= total for new, total in zip(step.new, step.totals, strict=True))


def test_a_prompt_is_cut_into_chunks_and_decodes_go_first() -> None:
    prompt, decoding = Sequence(0.0, 5000, 10), Sequence(0.0, 100, 10, computed=100)
    assert schedule([prompt, decoding], 2048) == [(decoding, 1), (prompt, 2047)]


def test_a_graph_has_a_captured_size_and_the_models_length() -> None:
    assert graph_of(Step((1, 1, 1), (9, 8, 7), 9), 8192) == Step((1,) * 4, (9, 8, 7, 0), 8192)
    mixed = Step((1, 40), (9, 40), 40)
    assert graph_of(mixed, 8192) == mixed


def test_a_step_misses_unless_its_scenario_is_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    day, step = Day(2048, 8192, 1.0, False, covered=False), Step((1,) * 4, (3000, 20, 20, 20), 3000)
    kernel, values = engine_day.scenario_of(step, MODEL, engine_day.PAGE, covered=False)
    scenario = engine_day.scenario_text(kernel, values)
    assert scenario is not None
    context, _ = engine_day.shipped_records()[kernel]
    for shipped, missed in ({scenario}, 0), (set[str](), 1):
        monkeypatch.setattr(engine_day, "shipped_records", lambda s=shipped: {kernel: (context, s)})
        day.count(step, MODEL)
        assert (day.missed_steps, day.missed_work) == (missed, missed * 3060)
    assert (day.steps, day.work) == (2, 2 * 3060)


def test_kernels_with_one_config_miss_nothing() -> None:
    day = Day(2048, 131072, 20.0, True)
    for step in islice(simulate(3, 2048, 131072, 20.0, 100), 100):
        day.count(graph_of(step, 131072), MODEL)
    met = {kernel for kernel, _ in day.scenarios}
    assert engine_day.KERNELS["hopper"] in met
    assert met <= set(engine_day.ONE_CONFIG)
    assert (day.steps, day.missed_steps) == (100, 0)


def test_lengths_are_as_in_traffic() -> None:
    drawn = list(islice(engine_day.arrivals(random.Random(1), 5.0, 8192), 4000))
    prompts = sorted(request.prompt for request in drawn)
    assert 120 < prompts[2000] < 160
    assert prompts[3960] > 1000, "a few are long"
    assert drawn[-1].arrival / 4000 == pytest.approx(1 / 5.0, rel=0.1)
