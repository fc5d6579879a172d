"""A tune on a GPU that is nearly full compares its winner all the same."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from dejavu_cache import cached_autotune
from dejavu_cache.stores import MemoryStore

pytestmark = pytest.mark.gpu

FREE = 2 << 30
ELEMENTS = 1 << 30
"""Of bfloat16: 2 GiB in each tensor, as much as is left free."""


def double(x, o, n, B: tl.constexpr, FACTOR: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    tl.store(o + at, tl.load(x + at, mask=at < n) * FACTOR, mask=at < n)


@pytest.mark.parametrize("is_wrong", [False, True])
def test_a_winner_is_compared_with_two_gibibytes_free(is_wrong: bool) -> None:
    configs = [
        triton.Config({"B": 64, "FACTOR": 2}, num_warps=1),
        triton.Config({"B": 4096, "FACTOR": 3 if is_wrong else 2}, num_warps=8),
    ]
    store = MemoryStore()
    kernel = cached_autotune(configs, ["n"], store=store)(triton.jit(double))
    x = torch.ones(ELEMENTS, dtype=torch.bfloat16, device="cuda")
    o = torch.zeros_like(x)
    free, _ = torch.cuda.mem_get_info()
    filler = torch.empty(max(free - FREE, 0), dtype=torch.uint8, device="cuda")
    try:
        kernel[lambda meta: (triton.cdiv(ELEMENTS, meta["B"]),)](x, o, ELEMENTS)
        assert bool((o == 2).all())
    finally:
        del filler
        torch.cuda.empty_cache()
    (found,) = store.record_sets()
    winner = found.records[0].winner
    assert winner is not None
    assert winner.is_compared
    assert winner.results is not None
    assert winner.results["o"].outcome == "equal"
    assert winner.config.params["B"] == (64 if is_wrong else 4096)
