"""An engine's warm-up on a real GPU, with no kernel compiled before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.processes import PROGRAMS, run_python

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_all_kernels_are_compiled_at_once(dtype: str, tmp_path: Path) -> None:
    """Those of `hopper`, and for float32 those with an autotuner."""
    program = f"import runpy; runpy.run_path({str(PROGRAMS / 'warm_up_attention.py')!r})"
    done = run_python(program, dtype, TRITON_CACHE_DIR=str(tmp_path / "cache"))
    threads, *_ = json.loads(done.stdout)
    assert set(threads) == {"dejavu-cache compile"}, "none waits for its own launch"
