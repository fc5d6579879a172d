"""Configs compile in parallel for an absent GPU, and those that cannot run fail early."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import triton
from support.processes import fork_program

from dejavu_cache.tuning.compile_ahead import _tile_of_a_warp

HAS_ASYNC = tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 5)


def compile_for_absent_gpu(folder: Path, *arguments: str) -> list[Any]:
    """Return what a program says of the configs that it compiles."""
    done = fork_program(
        "compile_for_absent_gpu.py",
        *arguments,
        TRITON_INTERPRET="0",
        TRITON_CACHE_DIR=str(folder / "cache"),
    )
    answers: list[Any] = json.loads(done.stdout)
    return answers


@pytest.mark.skipif(not HAS_ASYNC, reason="this Triton compiles one after the other")
def test_what_cannot_run_is_known_before_any_launch(tmp_path: Path) -> None:
    seen, hooked, threads, after, begun = compile_for_absent_gpu(tmp_path, "5")
    assert seen[0] == seen[4] == "runs"
    assert seen[1].startswith("out_of_resources: out of resource: shared memory, Required: 5")
    assert seen[2].startswith("compile_error: ")
    assert "32 is refused" in seen[2]
    assert seen[3].startswith("compile_error: ")
    assert "waves_per_eu" in seen[3]
    assert hooked == [4096], "a hook may change what is compiled"
    assert threads
    assert all(name.startswith("dejavu-cache compile") for name in threads)
    assert after == "CompiledKernel"
    assert begun == [64, 128, 64, 64, 32], "the default, and then large tiles, which take longest"


@pytest.mark.skipif(not HAS_ASYNC, reason="this Triton compiles one after the other")
def test_what_is_given_up_halfway_can_still_be_launched(tmp_path: Path) -> None:
    seen, _, _, after, _ = compile_for_absent_gpu(tmp_path, "1")
    assert seen == ["runs"]
    assert after == "CompiledKernel"


@pytest.mark.skipif(not HAS_ASYNC, reason="this Triton compiles one after the other")
def test_a_single_config_that_cannot_be_compiled_is_known_before_a_launch(tmp_path: Path) -> None:
    """A compilation that failed is repeated, and then it is often alone."""
    (seen,), _, _, after, _ = compile_for_absent_gpu(tmp_path, "1", "3")
    assert seen.startswith("compile_error: ")
    assert "waves_per_eu" in seen
    assert after == "CompiledKernel"


@pytest.mark.parametrize(
    ("values", "warps"),
    [({"SEED": 2**2000}, 4), ({"BLOCK": 0, "SHIFT": -1}, 4), ({"KIND": "x", "FLAG": True}, None)],
)
def test_a_config_without_sizes_has_a_place_in_the_order_too(
    values: dict[str, Any], warps: Any
) -> None:
    config = triton.Config(values)
    config.num_warps = warps
    assert isinstance(_tile_of_a_warp(config), float)
