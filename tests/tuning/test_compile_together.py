"""Kernels of many launches compile at once, before any of them is launched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import triton
from support.processes import fork_program

from dejavu_cache.tuning.compile_ahead import compile_together

HAS_ASYNC = tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 5)


@pytest.mark.skipif(not HAS_ASYNC, reason="this Triton compiles one after the other")
def test_launches_compile_each_kernel_once_and_run_nothing(tmp_path: Path) -> None:
    done = fork_program(
        "compile_launches_together.py",
        TRITON_INTERPRET="0",
        TRITON_CACHE_DIR=str(tmp_path / "cache"),
    )
    together, returned, compiled_later, failure, failing_grids = json.loads(done.stdout)
    assert together == ["dejavu-cache compile"] * 3
    assert returned == [None] * 5
    assert compiled_later == 0, "the launches that follow find the kernels in memory"
    assert failure == "CompileTimeAssertionFailure", "a launch that follows raises it"
    assert failing_grids == ["dejavu-cache compile"] * 3, "none was cancelled, though one waited"


def test_where_nothing_can_be_compiled_ahead_nothing_is_called() -> None:
    """Triton's interpreter would run the launches."""
    with compile_together() as is_compiling:
        assert not is_compiling
