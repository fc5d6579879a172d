"""The plug-in in a worker: what is met in vLLM's warm-up is tuned there, and nothing afterwards."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.processes import fork_program

from dejavu_cache.engines.vllm import plugin
from dejavu_cache.engines.vllm.plugin import follow_worker, multiply_once, warm_up_when_loaded


@pytest.mark.parametrize(
    ("mode", "options", "measured", "warmed_up"),
    [
        ("tune", [], [6, []], [3, []]),
        ("reuse", [], [0, [16, 32]], [0, [48]]),
        ("tune", ["--memory-is-given"], None, [6, []]),
    ],
    ids=["tune", "reuse", "memory is given"],
)
def test_adopted_kernels_are_tuned_in_the_warm_up_and_never_while_serving(
    tmp_path: Path, mode: str, options: list[str], measured: Any, warmed_up: Any
) -> None:
    """What each call benchmarks, and the sizes that it misses."""
    done = fork_program(
        "start_engine.py", str(tmp_path), *options, TRITON_INTERPRET="0", DEJAVU_CACHE_SHIPPED="0",
        DEJAVU_CACHE_INSTALL="1", DEJAVU_CACHE_MODE=mode, DEJAVU_CACHE_CHECK="0",
        DEJAVU_CACHE_URL=(tmp_path / "store").as_uri(),
    )  # fmt: skip
    adopted, report, second = json.loads(done.stdout)
    assert [adopted, second] == [True, report], "a second engine starts like the first"
    assert report["load_model"] == [0, []], "vLLM chooses some sizes afterwards"
    assert report.get("determine_available_memory") == measured
    assert report["compile_or_warm_up_model"] == warmed_up
    assert report["execute_model"] == [0, [64]], "a miss, on the worklist once"


def test_arguments_of_a_later_vllm_reach_its_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    class Worker:
        load_model = print

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


def test_each_kind_of_plain_weights_is_multiplied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def layer(out: int, dtype: Any = torch.bfloat16, **more: Any) -> torch.nn.Module:
        made = torch.nn.Linear(8, out, "skip_bias_add" in more, dtype=dtype)
        made.__dict__.update(more, quant_method=None)
        return made

    model = torch.nn.ModuleList([layer(16), layer(16), torch.nn.Linear(8, 56)])
    model.extend([layer(24, skip_bias_add=True), layer(32, skip_bias_add=False)])
    model.extend([layer(40, num_embeddings=40), layer(48, torch.float32)])
    seen: list[Any] = []
    monkeypatch.setattr(
        torch.nn.functional, "linear", lambda x, w, b: seen.append((len(w), b is not None, len(x)))
    )
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: seen.append("waited"))
    limits = SimpleNamespace(max_num_seqs=2, max_num_batched_tokens=11)
    settings = SimpleNamespace(scheduler_config=limits)
    multiply_once(SimpleNamespace(get_model=lambda: model, vllm_config=settings))
    layers = (16, False), (24, False), (32, True)
    expected = [(*each, count) for each in layers for count in (11, 9, 8, 6, 5, 4, 3, 2, 1)]
    assert seen == [*expected, (40, False, 2), (40, False, 1), "waited"]


def test_plug_ins_of_logits_are_looked_for_before_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[Any] = []
    loader = SimpleNamespace(cached_load_custom_logitsprocs=loaded.append)
    monkeypatch.setitem(sys.modules, "vllm.v1.sample.logits_processor", loader)
    for chosen in (None, ["module:Class"]):
        processor = type("InputProcessor", (SimpleNamespace,), {})
        plugin.find_logits_processors(SimpleNamespace(InputProcessor=processor))
        processor(model_config=SimpleNamespace(logits_processors=chosen))
    assert loaded == [None, ("module:Class",)]
