"""Modes `tune`, `reuse`, `strict` and `off` decide what a launch of an unknown scenario does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from support.addition import CONFIGS, Bench, make
from support.kernels import launch

from dejavu_cache import (
    Exact,
    ScenarioNotTuned,
)


def test_off_is_plain_autotune(tmp_path: Path) -> None:
    bench = Bench()
    for _ in range(2):
        launch(make(bench, mode="off", store=tmp_path / "store"), 100)
    assert bench.calls == 6
    assert not (tmp_path / "store").exists()


def test_reuse_never_benchmarks_and_takes_the_first_config() -> None:
    bench = Bench()
    kernel = make(bench, mode="reuse")
    launch(kernel, 100)
    assert bench.calls == 0
    assert kernel.best_config is CONFIGS[0]


def test_a_miss_is_put_on_the_worklist_once(monkeypatch: pytest.MonkeyPatch) -> None:
    missed: list[object] = []
    monkeypatch.setattr(
        "dejavu_cache.stores.MemoryStore.miss", lambda store, *miss: missed.append(miss)
    )
    monkeypatch.setattr("dejavu_cache.runtime.choices.RETRY_AFTER", 0.0)
    kernel = make(mode="reuse")
    for n in (100, 100, 200, 100):
        launch(kernel, n)
    assert len(missed) == 2


@pytest.mark.parametrize("mode", ["tune", "reuse"])
def test_a_program_with_ever_new_sizes_keeps_a_limited_number_of_choices(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    for module in ("choices", "resolver"):
        monkeypatch.setattr(f"dejavu_cache.runtime.{module}.MOST_CHOICES", 3)
    kernel = make(mode=mode, store="memory://")
    for _ in range(2):
        for n in range(1, 9):
            launch(kernel, n)
            assert len(kernel._choices) <= 3
    assert len(kernel.resolver(None)._noted_misses) <= 3
    assert kernel.benchmarked == (8 * len(CONFIGS) if mode == "tune" else 0)


def test_reuse_takes_the_nearest_scenario_within_reach() -> None:
    launch(make(), 128)
    kernel = make(mode="reuse")
    launch(kernel, 256)
    assert kernel.best_config.kwargs == {"BLOCK": 32}
    resolution = kernel.explain(torch.ones(1), torch.ones(1), 256)
    assert (resolution.how, resolution.distance) == ("nearest", 1.0)
    assert [str(difference) for difference in resolution.differences] == [
        "args.n: 128 recorded, 256 wanted"
    ]
    launch(kernel, 128 * 8)
    assert kernel.best_config is CONFIGS[0], "three powers of two are too far"


def test_reuse_does_not_go_near_where_only_exact_will_do() -> None:
    launch(make(), 128)
    kernel = make(mode="reuse", buckets={"n": Exact()})
    launch(kernel, 256)
    assert kernel.best_config is CONFIGS[0]


@pytest.mark.parametrize(
    "default", [CONFIGS[2], lambda named: CONFIGS[2 if named["n"] == 100 else 0]]
)
def test_the_default_may_be_given(default: Any) -> None:
    kernel = make(mode="reuse", default=default)
    launch(kernel, 100)
    assert kernel.best_config is CONFIGS[2]


@pytest.mark.parametrize("mode", ["tune", "reuse"])
def test_a_default_that_is_not_declared_gives_way_to_the_first_config(
    mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()
    kernel = make(bench, mode=mode, default=lambda named: triton.Config({"BLOCK": 128}))
    for n in (100, 200):
        launch(kernel, n)
        assert kernel.best_config is CONFIGS[1 if mode == "tune" else 0]
    assert bench.calls == (6 if mode == "tune" else 0)
    (warning,) = (text for text in caplog.messages if "declared" in text)
    assert "add_one: no declared config is its default (BLOCK: 128" in warning


def test_a_default_that_is_no_longer_declared_gives_way_too() -> None:
    kernel = make(mode="reuse", default=CONFIGS[2])
    kernel.configs = CONFIGS[:2]
    launch(kernel, 100)
    assert kernel.best_config is CONFIGS[0]


def test_strict_names_the_nearest_record_and_what_differs() -> None:
    kernel = make(mode="strict")
    with pytest.raises(ScenarioNotTuned, match="no record of this kernel exists"):
        launch(kernel, 100)
    launch(make(), 128)
    with pytest.raises(ScenarioNotTuned, match=r"args\.n: 128 recorded, 256 wanted"):
        launch(kernel, 256)
    launch(kernel, 128)


def test_a_mode_comes_from_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEJAVU_CACHE_MODE", "strict")
    with pytest.raises(ScenarioNotTuned):
        launch(make(), 100)


def test_capturing_a_graph_never_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    capturing = True
    monkeypatch.setattr("dejavu_cache.runtime.resolver.is_capturing_graph", lambda: capturing)
    bench = Bench()
    kernel = make(bench)
    launch(kernel, 100)
    assert (bench.calls, kernel.best_config) == (0, CONFIGS[0])
