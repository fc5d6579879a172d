"""On a real GPU: a config that ruins the device's context costs its process, and nothing else."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from dejavu_cache.stores import FileStore
from dejavu_cache.sweep.hosts import LocalHost, SweepSpec
from dejavu_cache.sweep.runner import Sweep

pytestmark = pytest.mark.gpu

SUITE = """
    import torch, triton, triton.language as tl
    from functools import partial
    from dejavu_cache import cached_autotune
    from dejavu_cache.sweep.suite import Case

    BLOCKS = {64: 0, 128: 1 << 44, 256: 0}
    CONFIGS = [triton.Config({"BLOCK": block, "FAR": far}) for block, far in BLOCKS.items()]

    @cached_autotune(configs=CONFIGS, key=["n"])
    @triton.jit
    def add_one(x_ptr, y_ptr, n, BLOCK: tl.constexpr, FAR: tl.constexpr):
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y_ptr + at + FAR, tl.load(x_ptr + at, mask=at < n) + 1, mask=at < n)

    def arguments(n):
        x, y = torch.zeros(2, n, device="cuda")
        return {"x_ptr": x, "y_ptr": y, "n": n}

    def grid(n, meta):
        return (triton.cdiv(n, meta["BLOCK"]),)

    def suite():
        for n in (1000, 2000, 3000):
            yield Case(f"n={n}", add_one, partial(grid, n), partial(arguments, n))
"""


def test_a_ruined_context_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "cases.py"
    path.write_text(textwrap.dedent(SUITE))
    host = LocalHost(SweepSpec(suite=str(path), store=(tmp_path / "store").as_uri()))
    report = Sweep([host]).run()
    assert report.complete
    lost = [line for line in caplog.messages if "another process takes it over" in line]
    assert len(lost) == 3, "one per scenario"
    assert all("illegal memory access" in line for line in lost)
    store = FileStore(tmp_path / "store")
    (context,) = store.contexts()
    records = list(store.records(context))
    assert len(records) == 3
    for record in records:
        outcomes = {
            measurement.config.params["BLOCK"]: measurement.failure and measurement.failure.kind
            for measurement in record.measurements
        }
        assert outcomes == {64: None, 128: "crash", 256: None}
