"""One event per launch: a line in the log or a span for a tune or fallback, and none for a hit."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import triton
from support.addition import CONFIGS, add_one, equal_times
from support.kernels import launch

from dejavu_cache import cached_autotune
from dejavu_cache.runtime import events
from dejavu_cache.system import notices
from dejavu_cache.system.notices import show_log


def make(store: Path, mode: Any = "tune") -> Any:
    return cached_autotune(
        CONFIGS, ["n"], buckets={"n": "pow2"}, do_bench=equal_times, store=store, mode=mode
    )(add_one)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "dejavu_cache")
    return caplog


def test_a_tune_and_a_fallback_are_one_line_each_and_a_hit_says_nothing(
    tmp_path: Path, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dejavu_cache.runtime.choices.RETRY_AFTER", 0.0)
    tuning, reusing = make(tmp_path), make(tmp_path, "reuse")
    launch(tuning, 128)
    (line,) = log.messages
    assert "tuned " in line
    assert "(n=128; x_ptr: float32" in line
    assert f": {len(CONFIGS)} configs in " in line
    assert f"winner (BLOCK={tuning.best_config.kwargs['BLOCK']}" in line
    assert line.endswith(f" 1 ms, tuned in {tmp_path.as_uri()}")
    log.clear()
    for _ in range(3):
        launch(reusing, 256)
    (line,) = log.messages
    assert "fell back for " in line
    assert f"nearest at distance 1 in {tmp_path.as_uri()}" in line
    launch(tuning, 256)
    log.clear()
    for _ in range(2):
        launch(reusing, 256)
    assert not log.messages, "a hit"


def test_a_long_tune_logs_lines(
    log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(notices, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def bench(kernel_call: Callable[[], Any], quantiles: Sequence[float]) -> list[float]:
        kernel_call()
        clock[0] += 6
        return [1.0] * 3

    configs = [triton.Config({"BLOCK": block}) for block in (16, 32, 64, 128)]
    launch(cached_autotune(configs, ["n"], do_bench=bench)(add_one), 100)
    assert [line.partition("): ")[2] for line in log.messages if line.startswith("tuning")] == [
        "2 of 4 configs after 12 s",
        "4 of 4 configs after 24 s",
    ]


def test_a_setting_writes_the_log_to_standard_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = logging.getLogger("dejavu_cache")
    monkeypatch.setattr(root, "propagate", True)
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", logging.NOTSET)
    show_log.cache_clear()
    show_log("info")
    show_log("info")
    logging.getLogger("dejavu_cache.launches").info("tuned it")
    logging.getLogger("dejavu_cache.launches").debug("hidden")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("INFO dejavu_cache.launches: tuned it")
    show_log.cache_clear()


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
    pytest.importorskip("opentelemetry.trace")
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
    (tuning, tuned, seconds), (fallback, fell, _) = recorder.spans
    assert (tuning, fallback) == ("dejavu_cache.tune", "dejavu_cache.fallback")
    assert tuned["dejavu_cache.benchmarked"] > 1
    assert "BLOCK" in tuned["dejavu_cache.config"]
    assert 0 < seconds < 300
    assert fell["dejavu_cache.how"] == "nearest"
    assert "n=256" in fell["dejavu_cache.scenario"]
    assert recorder.choices == {"tuned": 1, "exact": 1, "nearest": 1}


def test_the_api_takes_every_span_and_metric_and_a_broken_one_fails_no_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("opentelemetry.trace")
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
