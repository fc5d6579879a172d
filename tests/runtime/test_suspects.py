"""What a process measured when it died is known to the next one, and not run there."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from support.addition import CONFIGS, LAUNCHED, Spy, larger_is_faster, outcomes
from support.fork_server import Nursery
from support.kernels import launch
from support.processes import PROGRAMS, dejavu

from dejavu_cache import NoValidConfigError, cached_autotune
from dejavu_cache.stores import FileStore
from dejavu_cache.triton_internals.config_names import describe
from dejavu_cache.tuning.measurement_marks import MeasurementMark, _Mark

PROGRAM = PROGRAMS / "fatal_config.py"


def test_a_config_that_kills_its_process_is_met_once(tmp_path: Path, nursery: Nursery) -> None:
    """Only in a sweep it is tried again; that time, it kills nothing."""
    store, log, marks = (tmp_path / name for name in ("store", "log", "user/dejavu-cache"))
    variables = {
        "DEJAVU_CACHE_URL": str(store), "XDG_CACHE_HOME": str(marks.parent),
        "TRITON_INTERPRET": "1", "LOG": str(log),
    }  # fmt: skip

    def run(fatal: int = 0) -> tuple[int, str, str, set[str]]:
        log.write_text("")
        done = nursery.start_file(PROGRAM, fatal, folder=tmp_path, **variables).complete()
        return done.returncode, done.stdout, done.stderr, {*log.read_text().split()}

    code, _, _, launched = run(32)
    assert (code, "32" in launched) == (-9, True)
    code, out, error, launched = run(32)
    assert (code, out, "32" in launched) == (0, "64\n", False), "the best of the others runs"
    assert error.count("(BLOCK=32, num_ctas=1") == 1
    assert "is not run for a day: process" in error
    assert "`dejavu-cache sweep`" in error
    assert outcomes(FileStore(store)) == {16: "timed", 64: "timed"}, "a suspicion is no failure"
    assert (run(32)[1], {*log.read_text().split()}) == ("64\n", {"64"})
    swept = dejavu("sweep", PROGRAM, "--store", store, **variables)
    assert swept.returncode == 0, swept.stderr
    assert outcomes(FileStore(store)) == {16: "timed", 32: "timed", 64: "timed"}
    assert list((marks / "measuring").iterdir()) == []


def start_process(**options: Any) -> Any:
    """Return a kernel as a new process would decorate it; larger blocks are faster."""
    LAUNCHED.clear()
    return cached_autotune(CONFIGS, ["n"], do_bench=larger_is_faster, **options)(Spy())


@contextmanager
def mark_configs(*places: int) -> Iterator[Path]:
    """Mark configs as a process that measures them; after the block, as one that died there."""
    request = start_process().request(torch.ones(100), torch.ones(100), 100)
    marks = [MeasurementMark(request.context, request.scenario) for _ in places]
    for mark, place in zip(marks, places, strict=True):
        mark._write(_Mark(config=describe(CONFIGS[place]), pid=1, host="here").model_dump_json())
    yield marks[0]._path
    for mark in marks:
        assert mark._handle is not None
        os.close(mark._handle)


@pytest.mark.parametrize("mode", ["reuse", "tune"])
def test_the_default_config_may_be_the_one_that_kills(mode: str) -> None:
    with mark_configs(0):
        pass
    kernel = start_process(mode=mode)
    launch(kernel, 100)
    assert kernel.best_config is CONFIGS[1 if mode == "reuse" else 2]
    assert 16 not in LAUNCHED


def test_a_program_of_which_every_config_kills_ends_with_the_reasons() -> None:
    with mark_configs(0, 1, 2):
        pass
    with pytest.raises(NoValidConfigError, match="ended while it measured it"):
        launch(start_process(), 100)
    assert LAUNCHED == []


@pytest.mark.parametrize("age", [90_000, -90_000])
def test_a_suspicion_ends_after_a_day(age: int) -> None:
    """One from the future was dated by a clock that was put back since."""
    with mark_configs(2) as mark:
        os.utime(mark, (time.time() - age,) * 2)
    kernel = start_process()
    launch(kernel, 100)
    assert kernel.best_config is CONFIGS[2]
    assert list(mark.parent.iterdir()) == [], "old marks are removed"


def test_a_process_that_measures_is_no_reason_to_suspect_its_config() -> None:
    with mark_configs(2):
        kernel = start_process()
        launch(kernel, 100)
    assert kernel.best_config is CONFIGS[2]
