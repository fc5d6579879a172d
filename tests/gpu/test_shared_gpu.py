"""The Hopper kernel beside other work that leaves it few multiprocessors, or none for a while."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from support.attention_batches import TOLERANCE, Case, draw, has_hopper, relative_error, vary

pytestmark = pytest.mark.gpu

ROUNDS = 20_000
"""Of the other work: some 3 ms."""


@triton.jit
def fill_multiprocessors(out, rounds, BLOCK: tl.constexpr):
    """Keep a multiprocessor's registers for a while, so that no other program fits beside."""
    values = tl.arange(0, BLOCK).to(tl.float32)
    for _ in range(rounds):
        values = values * 1.0001 + 0.5
    tl.store(out + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), values)


BATCHES = {
    "decodes": Case(new=[1] * 2, past=[9000, 20000], heads=(32, 8)),
    "drafts": Case(new=[4] * 3, past=[3000, 9000, 100], heads=(32, 8)),
    "one KV head": Case(new=[1] * 2, past=[9000, 700], heads=(8, 1)),
    "a chunk": Case(new=[300], past=[9000], heads=(32, 8)),
}


@pytest.mark.skipif(not has_hopper(), reason="the kernel for Hopper GPUs cannot run here")
@pytest.mark.parametrize("programs", [10, 100, 131])
@pytest.mark.parametrize("name", BATCHES)
def test_programs_that_start_late_do_not_stop_the_others(name: str, programs: int) -> None:
    batch = draw(vary(BATCHES[name], head_size=128, dtype=torch.bfloat16))
    within = TOLERANCE[torch.bfloat16]
    batch.run("hopper")  # compiles
    memory = torch.empty(programs * 32768, device="cuda")
    fill_multiprocessors[(programs,)](memory, 1, BLOCK=32768, num_warps=32)
    torch.cuda.synchronize()
    beside = torch.cuda.Stream()
    for _ in range(3):
        with torch.cuda.stream(beside):
            fill_multiprocessors[(programs,)](memory, ROUNDS, BLOCK=32768, num_warps=32)
        assert relative_error(batch.run("hopper"), batch.expected) < within
        torch.cuda.synchronize()
        assert relative_error(batch.run("hopper"), batch.expected) < within
