"""The log says what a launch did: one line per tune and fallback, none for a hit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import triton
from support.addition import CONFIGS, add_one
from support.kernels import launch

from dejavu_cache import cached_autotune
from dejavu_cache.runtime import tune
from dejavu_cache.system.notices import show_log


def bench(kernel_call: Any, quantiles: Any) -> list[float]:
    kernel_call()
    return [1.0, 1.0, 1.0]


def make(store: Path, mode: Literal["tune", "reuse"] = "tune") -> Any:
    return cached_autotune(
        configs=CONFIGS, key=["n"], buckets={"n": "pow2"}, do_bench=bench, store=store, mode=mode
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
    monkeypatch.setattr(tune, "time", SimpleNamespace(monotonic=lambda: clock[0]))

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
