"""`explain` says which config a launch would run, and why, without running anything."""

from __future__ import annotations

import re
from pathlib import Path

import torch
import triton
from support.addition import CONFIGS, Bench, make
from support.kernels import launch

from dejavu_cache import (
    Resolution,
)
from dejavu_cache.system.notices import whoami


def test_explain_runs_and_writes_nothing(tmp_path: Path) -> None:
    kernel = make(store=tmp_path / "store")
    resolution = kernel.explain(torch.ones(1), torch.ones(1), 100)
    assert isinstance(resolution, Resolution)
    assert (resolution.how, resolution.config) == ("default", CONFIGS[0])
    assert "unmeasured configs: 3" in str(resolution)
    assert not (tmp_path / "store").exists()
    launch(kernel, 100)
    resolution = kernel.explain(torch.ones(100), torch.ones(100), 100)
    assert (resolution.how, resolution.store) == ("tuned", (tmp_path / "store").as_uri())
    assert "BLOCK: 32" in str(resolution)
    assert resolution.context.environment.triton == triton.__version__


def test_explain_tells_time_runner_up_default_age_and_author(tmp_path: Path) -> None:
    launch(make(store=tmp_path), 128)
    text = str(make(store=tmp_path).explain(torch.ones(1), torch.ones(1), 128))
    assert "time: 1 ms (1 to 1)" in text
    assert re.search(rf"measured: \d+ seconds ago, 20.* UTC, by {re.escape(whoami())}", text)
    assert re.search(r"runner-up: BLOCK=64.*, 2\.00x", text)
    assert re.search(r"default: BLOCK=16.*, 3\.00x", text)


def test_explain_tells_how_far_the_nearest_record_is(tmp_path: Path) -> None:
    launch(make(store=tmp_path), 128)
    arguments = torch.ones(1), torch.ones(1)
    near = make(store=tmp_path, mode="reuse").explain(*arguments, 256)
    assert (near.how, near.distance, near.recorded_for.args["n"]) == ("nearest", 1.0, 128)
    assert "time: 1 ms" in str(near)
    assert "found:  nearest at distance 1 in " in str(near)
    far = make(store=tmp_path, mode="reuse").explain(*arguments, 128 * 64)
    assert far.how == "default"
    assert "time: " not in str(far)
    assert "the nearest record is at distance 6" in str(far)


def test_explain_tells_the_truth_in_mode_off(tmp_path: Path) -> None:
    launch(make(store=tmp_path), 128)
    bench = Bench([1.0, 2.0, 3.0])
    kernel = make(bench, store=tmp_path, mode="off")
    arguments = torch.ones(1), torch.ones(1), 128
    before = kernel.explain(*arguments)
    assert (before.how, before.config, before.store, before.final) == ("off", None, None, True)
    assert "Triton chooses it at the first launch" in str(before)
    launch(kernel, 128)
    after = kernel.explain(*arguments)
    assert (after.how, after.config) == ("off", kernel.best_config)
    assert after.config is CONFIGS[0]  # the record's winner is another one
    assert kernel.look_up(*arguments).config is CONFIGS[0]
