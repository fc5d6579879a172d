"""The plug-in in a worker: what is met in vLLM's warm-up is tuned there, and nothing afterwards."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.processes import fork_program

from dejavu_cache.engines.vllm import plugin
from dejavu_cache.engines.vllm.plugin import follow_worker, warm_up_when_loaded


@pytest.mark.parametrize("mode", ["tune", "reuse"])
def test_adopted_kernels_are_tuned_in_the_warm_up_and_never_while_serving(
    tmp_path: Path, mode: str
) -> None:
    done = fork_program(
        "start_engine.py",
        str(tmp_path),
        TRITON_INTERPRET="0",
        DEJAVU_CACHE_SHIPPED="0",
        DEJAVU_CACHE_INSTALL="1",
        DEJAVU_CACHE_CHECK="0",  # a pretended GPU computes nothing that could be compared
        DEJAVU_CACHE_MODE=mode,
        DEJAVU_CACHE_URL=(tmp_path / "store").as_uri(),
    )
    report = json.loads(done.stdout)
    assert report["adopted"]
    tuned = mode == "tune"
    assert report["load_model"] == [0, []], "vLLM chooses some sizes afterwards"
    assert report["determine_available_memory"] == ([6, []] if tuned else [0, [16, 32]])
    assert report["compile_or_warm_up_model"] == ([3, []] if tuned else [0, [48]])
    assert report["execute_model"] == [0, [64]], "a miss, on the worklist once"
    assert report["launched"]


def test_layers_are_warmed_up_where_the_memory_is_given(tmp_path: Path) -> None:
    done = fork_program(
        "start_engine.py",
        str(tmp_path),
        "--memory-is-given",
        TRITON_INTERPRET="0",
        DEJAVU_CACHE_SHIPPED="0",
        DEJAVU_CACHE_INSTALL="1",
        DEJAVU_CACHE_CHECK="0",  # a pretended GPU computes nothing that could be compared
        DEJAVU_CACHE_URL=(tmp_path / "store").as_uri(),
    )
    report = json.loads(done.stdout)
    assert report["compile_or_warm_up_model"] == [6, []]
    assert report["execute_model"] == [0, [64]]


def test_arguments_of_a_later_vllm_reach_its_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    class Worker:
        def determine_available_memory(self, *, reserved: int) -> int:
            return 80 - reserved

        def compile_or_warm_up_model(self, model: str) -> str:
            return model

    phases: list[str] = []
    monkeypatch.setattr(plugin, "_layers", plugin._Layers())
    monkeypatch.setattr(plugin, "serving", lambda: phases.append("serving"))
    follow_worker(SimpleNamespace(Worker=Worker))
    warm_up_when_loaded(SimpleNamespace(warm_up=lambda: phases.append("layer")))
    worker: Any = Worker()
    assert worker.determine_available_memory(reserved=8) == 72
    assert phases == ["layer"]
    assert worker.compile_or_warm_up_model("a model") == "a model"
    assert phases == ["layer", "serving"]
    warm_up_when_loaded(SimpleNamespace(warm_up=lambda: phases.append("late layer")))
    assert phases[-1] == "late layer"
