"""On a real GPU: a miss inside a capture, and one graph per bucket that replays for every size."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from dejavu_cache import Pow2, cached_autotune
from dejavu_cache.runtime.graphs import GraphedStep

pytestmark = pytest.mark.gpu

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


def run_scale(kernel: Any, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](
        x, factor, out, x.shape[0], WIDTH=x.shape[1]
    )
    return out


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
    for _ in range(3):
        x.normal_()
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, x * factor[:, None])


def test_one_graph_per_bucket_serves_fifty_sizes(tmp_path: Path) -> None:
    kernel = make(tmp_path)
    step = GraphedStep(
        lambda x, factor, shift: run_scale(kernel, x, factor) + shift,
        Pow2(min=8, max=512),
        fixed=["shift"],
    )
    shift = torch.randn(64, device="cuda")
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(1, 513, (50,), generator=generator).tolist()
    for size in [*sizes, *sizes]:
        x, factor = torch.randn(size, 64, device="cuda"), torch.randn(size, device="cuda")
        torch.testing.assert_close(
            step(size, x=x, factor=factor, shift=shift), x * factor[:, None] + shift
        )
    assert set(step.sizes) <= {8, 16, 32, 64, 128, 256, 512}
    assert kernel.benchmarked <= 3 * 7


def test_the_limit_drops_the_graph_that_was_not_used_for_longest(tmp_path: Path) -> None:
    kernel = make(tmp_path)
    step = GraphedStep(lambda x, factor: run_scale(kernel, x, factor), Pow2(), limit=2)
    for size in (3, 8, 4, 30, 5):
        x, factor = torch.randn(size, 64, device="cuda"), torch.randn(size, device="cuda")
        assert torch.equal(step(size, x=x, factor=factor), x * factor[:, None])
    assert step.sizes == [32, 8]


def test_what_no_bucket_holds_runs_as_it_is(tmp_path: Path) -> None:
    kernel = make(tmp_path)
    step = GraphedStep(lambda x, factor: run_scale(kernel, x, factor), Pow2(max=16))
    x, factor = torch.randn(17, 64, device="cuda"), torch.randn(17, device="cuda")
    assert torch.equal(step(17, x=x, factor=factor), x * factor[:, None])
    assert step.sizes == []


def test_an_input_of_another_size_is_named(tmp_path: Path) -> None:
    step = GraphedStep(lambda x: x, Pow2())
    with pytest.raises(ValueError, match=r"input 'x' has shape \(3, 64\) in a call of size 4"):
        step(4, x=torch.zeros(3, 64, device="cuda"))
