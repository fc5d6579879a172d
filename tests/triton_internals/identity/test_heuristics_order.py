"""Heuristics between an autotuner and its jit function take part in the kernel's code."""

from __future__ import annotations

from pathlib import Path

from support.kernels import load

from dejavu_cache.triton_internals.identity import identify

HEAD = "import triton, triton.language as tl\n"


def test_heuristics_that_read_each_other_count_by_their_order(tmp_path: Path) -> None:
    kernel = """
first = lambda args: 64
second = lambda args: args["B"] * 2
@triton.heuristics({@@})
@triton.jit
def k(x, B: tl.constexpr, C: tl.constexpr):
    tl.store(x, B + C)
"""
    orders = ('"B": first, "C": second', '"C": second, "B": first')
    hashes = {
        identify(load(tmp_path / "kernels.py", HEAD + kernel.replace("@@", order)).k, []).source
        for order in orders
    }
    assert len(hashes) == 2
