"""On a real GPU, timings agree with Triton's, and failures are recorded, also of a lost device."""

import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from support.processes import ROOT
from support.records import first_record

from dejavu_cache import cached_autotune, open_store
from dejavu_cache.stores import FileStore
from dejavu_cache.sweep.hosts import LocalHost, SweepSpec
from dejavu_cache.sweep.runner import Sweep
from dejavu_cache.triton_internals.config_names import describe
from dejavu_cache.tuning.device_timer import FULL, DeviceTimer, TimedLaunch

pytestmark = pytest.mark.gpu

sys.path.insert(0, str(ROOT / "benchmarks"))


@pytest.fixture
def product() -> tuple[Any, torch.Tensor, torch.Tensor]:
    from kernels import matmul_kernel

    a, b = torch.randn(2, 2048, 2048, device="cuda", dtype=torch.bfloat16)
    return matmul_kernel, a, b


@pytest.mark.parametrize(
    "method", ["events-cold", "events-warm", "cudagraph-cold", "cudagraph-warm"]
)
def test_a_method_times_what_triton_times(product: Any, method: str) -> None:
    kernel, a, b = product
    c = torch.empty_like(a)

    def call() -> None:
        blocks = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64}
        kernel[(16, 16)](a, b, c, *[2048] * 3, **blocks, num_warps=8, num_stages=3)

    call()
    timer = DeviceTimer(method)
    timer.warm_up()
    sample = timer.sample(TimedLaunch(call), FULL)
    assert sample.steady
    theirs = triton.testing.do_bench(call, quantiles=[0.5])
    # Other processes may share the GPU: a wrong unit or a launch too many is what this would show.
    assert sample.quantiles([0.5])[0] == pytest.approx(theirs, rel=0.5)
    assert len(timer.sample(TimedLaunch(call), FULL, limit=0.0).times) == 1


@pytest.mark.parametrize("method", ["cudagraph-cold", "cudagraph-warm"])
def test_graphs_of_many_timings_share_their_memory(method: str) -> None:
    """PyTorch never frees a graph's memory during a capture, so it must not grow."""
    timer = DeviceTimer(method)

    def fill() -> None:
        torch.ones(1 << 28, device="cuda", dtype=torch.uint8)

    def fail() -> None:
        fill()
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError("no such config")

    timer.sample(TimedLaunch(fill), FULL)
    reserved = torch.cuda.memory_reserved()
    for number in range(20):
        if number % 3 == 0:
            with pytest.raises(RuntimeError, match="no such config"):
                timer.sample(TimedLaunch(fail), FULL)
        assert timer.sample(TimedLaunch(fill), FULL).times
    assert torch.cuda.memory_reserved() <= reserved + (1 << 28)
    timer.release()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= reserved - (1 << 28)


@pytest.mark.parametrize("method", ["events-cold", "cudagraph-warm"])
def test_a_tune_records_all_and_finds_a_good_one(product: Any, method: Any, tmp_path: Path) -> None:
    from kernels import matmul, matmul_configs

    jitted, a, b = product
    configs = [
        *matmul_configs()[::4],
        triton.Config({"BLOCK_M": 256, "BLOCK_N": 256, "BLOCK_K": 128}, num_stages=5, num_warps=8),
        triton.Config({"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "waves_per_eu": 2}),
    ]
    kernel = cached_autotune(configs, key=["M", "N", "K"], method=method, store=tmp_path)(jitted)
    torch.testing.assert_close(matmul(kernel, a, b), a @ b, rtol=2e-2, atol=0.5)
    context, record = first_record(open_store(str(tmp_path)))
    assert context.problem.method == method
    assert len(record.measurements) == len(configs)
    kinds = {m.config.params["BLOCK_K"]: m.failure.kind for m in record.measurements if m.failure}
    assert kinds == {128: "out_of_resources", 32: "compile_error"}
    best = min(entry.median for entry in record.measurements if entry.median is not None)
    won = record.by_config[describe(kernel.best_config)]
    assert won.median is not None
    assert won.median <= best * 1.03


@triton.jit
def add_one_in_place(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at, mask=at < n) + 1, mask=at < n)


def test_restoring_an_argument_does_not_count(tmp_path: Path) -> None:
    """Saving and restoring 64 MB takes as long as the kernel does, each."""
    n = 1 << 24
    x = torch.zeros(n, device="cuda")
    configs = [triton.Config({"BLOCK": 1024}), triton.Config({"BLOCK": 2048})]
    kernel = cached_autotune(configs, key=["n"], restore_value=["x_ptr"], store=tmp_path)(
        add_one_in_place
    )
    kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, n)
    assert x.eq(1).all(), "the launches that were measured left nothing behind"
    _, record = first_record(open_store(str(tmp_path)))
    theirs = triton.testing.do_bench(
        lambda: add_one_in_place[(n // 1024,)](x, n, BLOCK=1024), quantiles=[0.5]
    )
    for measurement in record.measurements:
        assert measurement.median == pytest.approx(theirs, rel=0.5)


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
