"""Spans and metrics of OpenTelemetry: one span per tune and fallback."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from support.addition import CONFIGS, add_one
from support.kernels import launch

from dejavu_cache import cached_autotune
from dejavu_cache.runtime import events

pytest.importorskip("opentelemetry.trace")


def bench(kernel_call: Any, quantiles: Any) -> list[float]:
    kernel_call()
    return [1.0, 1.0, 1.0]


def make(store: Path, mode: Literal["tune", "reuse"] = "tune") -> Any:
    return cached_autotune(
        configs=CONFIGS, key=["n"], buckets={"n": "pow2"}, do_bench=bench, store=store, mode=mode
    )(add_one)


class Recorder:
    """Takes the place of a program's providers and keeps what they get."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, dict[str, Any], float]] = []
        self.choices: Counter[str] = Counter()

    def start_span(self, name: str, start_time: int, attributes: dict[str, Any]) -> Any:
        def end(end_time: int) -> None:
            self.spans.append((name, attributes, (end_time - start_time) / 1e9))

        return SimpleNamespace(end=end)

    def add(self, value: int, attributes: dict[str, Any]) -> None:
        self.choices[attributes["dejavu_cache.how"]] += value


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr("opentelemetry.trace.get_tracer", lambda name: recorder)
    monkeypatch.setattr(events, "_choices_counter", lambda: recorder)
    return recorder


def test_a_tune_and_a_fallback_are_one_span_each(tmp_path: Path, recorder: Recorder) -> None:
    launch(make(tmp_path), 128)
    launch(make(tmp_path, "reuse"), 128)
    reusing = make(tmp_path, "reuse")
    for _ in range(3):
        launch(reusing, 256)
    (tune, tuned, seconds), (fallback, fell, _) = recorder.spans
    assert (tune, fallback) == ("dejavu_cache.tune", "dejavu_cache.fallback")
    assert tuned["dejavu_cache.benchmarked"] > 1
    assert "BLOCK" in tuned["dejavu_cache.config"]
    assert 0 < seconds < 300
    assert fell["dejavu_cache.how"] == "nearest"
    assert "n=256" in fell["dejavu_cache.scenario"]
    assert recorder.choices == {"tuned": 1, "exact": 1, "nearest": 1}


def test_the_api_takes_every_span_and_metric_and_a_broken_one_fails_no_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    launch(make(tmp_path), 128)
    assert "OpenTelemetry" not in caplog.text, "the API's own objects took them"

    def break_down() -> Any:
        raise RuntimeError("no exporter")

    monkeypatch.setattr(events, "_choices_counter", break_down)
    launch(make(tmp_path), 512)
    assert "OpenTelemetry took no span or metric: no exporter" in caplog.text


def test_a_program_without_telemetry_does_not_import_it(
    tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "opentelemetry")
    launch(make(tmp_path), 128)
    assert "opentelemetry" not in sys.modules
    assert not recorder.spans
