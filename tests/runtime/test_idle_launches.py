"""A launch without work, or with results that cannot be compared, decides nothing."""

from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from support.addition import Bench, make
from torch.distributed import HashStore

import dejavu_cache
from dejavu_cache import Pow2
from dejavu_cache.runtime import consensus

RIGHT, FAST, WRONG = (triton.Config({"B": size}) for size in (16, 32, 64))


def add_one(x, o, count, n, D, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    mask = at < tl.load(count)
    tl.store(o + at, tl.load(x + at, mask=mask) + (2 if B == 64 else 1), mask=mask)


def decorate(store: Path, bench: Bench | None = None, **options: Any) -> Any:
    bench = bench or Bench((2.0, 1.0))
    options = {"key": ["D"], "configs": [RIGHT, WRONG], **options}
    return make(bench, triton.jit(add_one), store=store, **options)


def launch(kernel: Any, n: int, count: int, grid: Any = None) -> bool:
    """Return whether a launch of which the device says that `count` rows are in use is right."""
    x, o = torch.ones(64), torch.zeros(64)
    counts = torch.tensor([count], dtype=torch.int32)
    grid = grid or (lambda meta: (triton.cdiv(n, meta["B"]),))
    kernel[grid](x, o, counts, n, 128)
    return bool((o[:count] == 2).all()) and not o[count:].any()


IDLE = {
    "an empty grid": (0, 64, None),
    "an empty second dimension": (64, 0, (4, 0)),
    "an empty third dimension of a function": (64, 0, lambda meta: (4, 1, 0)),
    "a count of 0 on the device": (64, 0, None),
}


@pytest.mark.parametrize("idle", IDLE)
@pytest.mark.parametrize("options", [{}, {"key": ["n"], "buckets": {"n": Pow2(min=64)}}], ids=str)
def test_it_is_neither_tuned_nor_recorded(idle: str, options: Any, tmp_path: Path) -> None:
    bench = Bench((2.0, 1.0))
    n, count, grid = IDLE[idle]
    kernel = decorate(tmp_path, bench, **options)
    for _ in range(2):
        launch(kernel, n, count, grid)
        assert kernel.best_config is RIGHT
        assert bench.calls == 0
        assert next(kernel.home.records(kernel.context), None) is None
    assert launch(kernel, 64, 64)
    assert bench.calls == 2
    assert launch(decorate(tmp_path, bench, mode="strict", **options), 64, 64)
    assert bench.calls == 2


@pytest.mark.parametrize("mode", ["reuse", "strict"])
def test_an_empty_grid_is_no_miss(mode: str, tmp_path: Path) -> None:
    kernel, missed = decorate(tmp_path, mode=mode), list[Any]()
    kernel.home.miss = lambda *miss: missed.append(miss)
    assert launch(kernel, 0, 0)
    assert missed == []


def test_an_empty_grid_takes_what_is_recorded(tmp_path: Path) -> None:
    assert launch(decorate(tmp_path), 64, 64)
    kernel = decorate(tmp_path, mode="strict")
    launch(kernel, 0, 0)
    x = torch.ones(64)
    assert kernel.explain(x, x, torch.ones(1, dtype=torch.int32), 64, 128).how == "exact"


def test_it_decides_nothing_for_the_ranks_of_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = HashStore()
    monkeypatch.setattr(consensus, "_job_store", lambda: job)
    monkeypatch.setattr(torch.distributed, "get_rank", int)
    benches = [Bench((1.0, 2.0)), Bench((2.0, 1.0))]
    options: dict[str, Any] = {"configs": [RIGHT, FAST], "consensus": "ranks"}
    ranks = [decorate(tmp_path, bench, **options) for bench in benches]
    for rank in ranks:
        for _ in range(2):
            assert launch(rank, 64, 0)
    assert launch(ranks[1], 64, 64)
    assert launch(ranks[0], 64, 64)
    assert [bench.calls for bench in benches] == [0, 2]
    assert [rank.best_config for rank in ranks] == [FAST, FAST]


def behind_a_pointer(table, n, B: tl.constexpr):
    out = tl.load(table).to(tl.pointer_type(tl.float32))
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + at, 1.0 if B == 16 else 7.0, at < n)


def launch_behind_pointer(kernel: Any) -> float:
    out = torch.zeros(64)
    kernel[lambda meta: (triton.cdiv(64, meta["B"]),)](torch.tensor([out.data_ptr()]), 64)
    assert float(out.min()) == float(out.max())
    return float(out[0])


class TestWhereNothingCanBeCompared:
    """Only the default may win, unless the author says otherwise."""

    def decorate(self, store: Path, **options: Any) -> Any:
        options = {"key": ["n"], "configs": [RIGHT, WRONG], **options}
        return make(Bench((2.0, 1.0)), triton.jit(behind_a_pointer), store=store, **options)

    def test_the_default_runs_and_a_warning_says_what_to_do(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        for _ in range(2):
            kernel = self.decorate(tmp_path)
            assert launch_behind_pointer(kernel) == 1.0
            assert launch_behind_pointer(kernel) == 1.0
            assert kernel.benchmarked == 0
        explained = kernel.explain(torch.zeros(1, dtype=torch.int64), 64)
        assert explained.how == "default"
        assert caplog.text.count("behind pointers") == 1
        assert "check=False" in caplog.text
        assert "outputs=" in caplog.text

    def test_an_adopted_kernel_is_tuned_by_triton_and_not_stored(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setenv("DEJAVU_CACHE_URL", str(tmp_path))
        dejavu_cache.install()
        try:
            kernel = triton.autotune([RIGHT, WRONG], ["n"], do_bench=Bench((2.0, 1.0)))(
                triton.jit(behind_a_pointer)
            )
        finally:
            dejavu_cache.uninstall()
        assert [launch_behind_pointer(kernel) for _ in range(2)] == [7.0, 7.0]
        assert next(kernel.home.records(kernel.context), None) is None
        assert caplog.text.count("tuned by Triton alone") == 1
