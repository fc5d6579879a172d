"""On a real GPU: tuned in one process, reused in the next, and never while a graph is captured."""

import gc
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from support.processes import ROOT, run_python

from dejavu_cache import Pow2, cached_autotune
from dejavu_cache.stores import FileStore

pytestmark = pytest.mark.gpu


PROCESS = """
    import json, sys, torch
    sys.path.insert(0, sys.argv[1])
    from kernels import add_norm, decorate_add_norm, matmul, matmul_configs, matmul_kernel
    from dejavu_cache import cached_autotune
    product = cached_autotune(configs=matmul_configs()[::6], key=["M", "N", "K"])(matmul_kernel)
    norm = decorate_add_norm(cached_autotune)
    torch.manual_seed(0)
    a, b = torch.randn(2, 1024, 1024, device="cuda", dtype=torch.bfloat16)
    torch.testing.assert_close(matmul(product, a, b), a @ b, rtol=1e-2, atol=0.5)
    x, residual = torch.randn(2, 512, 1000, device="cuda", dtype=torch.float32)
    for weight in (None, torch.randn(1000, device="cuda")):
        y, added, total = add_norm(norm, x, residual, weight)
        expected = torch.nn.functional.rms_norm(x + residual, (1000,), weight, 1e-6)
        torch.testing.assert_close(added, x + residual)
        torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)
        assert total.item() == 512, "benchmarks were undone"
    winners = [product.best_config.all_kwargs(), norm.fn.best_config.all_kwargs()]
    print(json.dumps([product.benchmarked, norm.fn.benchmarked, winners]))
"""


def run(store: Path) -> list[object]:
    done = run_python(PROCESS, str(ROOT / "benchmarks"), DEJAVU_CACHE_URL=store.as_uri())
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_the_second_process_benchmarks_nothing(tmp_path: Path) -> None:
    first, second = run(tmp_path / "store"), run(tmp_path / "store")
    assert first[:2] == [8, 80]
    assert second[:2] == [0, 0]
    assert second[2] == first[2]


CONFIGS = [triton.Config({"BLOCK": block}) for block in (64, 128, 256)]


@triton.jit
def scale_rows(x, factor, out, rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < rows * WIDTH
    tl.store(
        out + at,
        tl.load(x + at, mask=inside) * tl.load(factor + at // WIDTH, mask=inside),
        mask=inside,
    )


def make(store: Path, **options: Any) -> Any:
    return cached_autotune(CONFIGS, ["rows"], buckets={"rows": Pow2()}, store=store, **options)(
        scale_rows
    )


def test_the_environment_names_the_gpu(tmp_path: Path) -> None:
    x = torch.ones(8, 8, device="cuda")
    environment_now = make(tmp_path).explain(x, x, x, 8, WIDTH=8).context.environment
    properties = torch.cuda.get_device_properties(0)
    assert environment_now.device.name == properties.name
    assert environment_now.device.units == properties.multi_processor_count
    assert environment_now.codegen.startswith("ptxas ") or torch.version.hip


@pytest.mark.parametrize("mode", ["tune", "reuse"])
def test_a_miss_inside_a_capture_is_resolved_without_a_benchmark(tmp_path: Path, mode: str) -> None:
    kernel = make(tmp_path, mode=mode)
    x, factor = torch.randn(96, 64, device="cuda"), torch.randn(96, device="cuda")
    out = torch.empty_like(x)

    def launch() -> None:
        kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, factor, out, 96, WIDTH=64)

    gc.collect()  # to free another test's graph during a capture would end it
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        before = torch.cuda.memory_allocated()
        launch()
        assert torch.cuda.memory_allocated() == before
    assert kernel.benchmarked == 0
    assert not any(r.measurements for s in FileStore(tmp_path).record_sets() for r in s.records)
    for _ in range(3):
        x.normal_()
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, x * factor[:, None])
