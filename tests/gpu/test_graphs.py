"""On a real GPU: a miss inside a capture of a graph."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from dejavu_cache import Pow2, cached_autotune

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
