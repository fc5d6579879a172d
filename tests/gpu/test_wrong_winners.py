"""On a real GPU: fast wrong configs win with Triton and not here, even where memory is short."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from dejavu_cache import CheckOptions, cached_autotune
from dejavu_cache.stores import MemoryStore

pytestmark = pytest.mark.gpu

TUNES = 50

# Sums of 4096 numbers a row: one program a row is right; SPLIT programs a row that add without
# atomics race, and finish sooner.
RACY_CONFIGS = [
    triton.Config({"BLOCK": 1024, "SPLIT": split}, num_warps=4) for split in (1, 8, 2, 4)
]

# A config whose constexpr STEPS is too small leaves columns out, and finishes sooner.
SHORT_CONFIGS = [triton.Config({"BLOCK": 256, "STEPS": steps}) for steps in (16, 1, 8)]


@triton.jit
def racy_row_sum(x_ptr, out_ptr, columns, BLOCK: tl.constexpr, SPLIT: tl.constexpr):
    row, part = tl.program_id(0), tl.program_id(1)
    share = columns // SPLIT
    total = 0.0
    for start in range(0, share, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.sum(tl.load(x_ptr + row * columns + part * share + at, at < share, other=0.0))
    if SPLIT == 1:
        tl.store(out_ptr + row, total)
    else:
        tl.store(out_ptr + row, tl.load(out_ptr + row) + total)


@triton.jit
def short_row_sum(x_ptr, out_ptr, columns, BLOCK: tl.constexpr, STEPS: tl.constexpr):
    row = tl.program_id(0)
    total = 0.0
    for step in range(STEPS):
        at = step * BLOCK + tl.arange(0, BLOCK)
        total += tl.sum(tl.load(x_ptr + row * columns + at, at < columns, other=0.0))
    tl.store(out_ptr + row, total)


def launch_racy(kernel: Any) -> tuple[torch.Tensor, torch.Tensor]:
    x, out = torch.rand(32, 4096, device="cuda"), torch.zeros(32, device="cuda")
    kernel[lambda meta: (32, meta["SPLIT"])](x, out, 4096)
    return out, x.sum(1)


def launch_short(kernel: Any) -> tuple[torch.Tensor, torch.Tensor]:
    x, out = torch.rand(32, 4096, device="cuda"), torch.zeros(32, device="cuda")
    kernel[(32,)](x, out, 4096)
    return out, x.sum(1)


@pytest.mark.parametrize(
    ("function", "configs", "launch"),
    [(racy_row_sum, RACY_CONFIGS, launch_racy), (short_row_sum, SHORT_CONFIGS, launch_short)],
    ids=["racy", "short"],
)
def test_a_wrong_config_never_wins(
    function: Any,
    configs: list[triton.Config],
    launch: Callable[[Any], tuple[torch.Tensor, torch.Tensor]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    theirs = triton.autotune(configs, ["columns"])(function)
    launch(theirs)
    wrong_upstream = theirs.best_config.all_kwargs() != configs[0].all_kwargs()
    wrong = 0
    for _ in range(TUNES):
        kernel = cached_autotune(configs, ["columns"], store=MemoryStore())(function)
        launch(kernel)
        actual, expected = launch(kernel)
        right = kernel.best_config.all_kwargs() == configs[0].all_kwargs()
        wrong += not (right and torch.allclose(actual, expected, rtol=1e-3))
    with capsys.disabled():
        print(f"{function.__name__}: Triton picks a wrong config: {wrong_upstream};", end=" ")
        print(f"here {wrong} of {TUNES} tunes")
    assert wrong == 0


def test_atomic_sums_are_no_false_alarm() -> None:
    """A kernel that accumulates by atomics differs in the last bits, and that is right."""

    @triton.jit
    def atomic_row_sum(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
        row, part = tl.program_id(0), tl.program_id(1)
        at = part * BLOCK + tl.arange(0, BLOCK)
        tl.atomic_add(out_ptr + row, tl.sum(tl.load(x_ptr + row * columns + at)))

    configs = [triton.Config({"BLOCK": block}) for block in (256, 512, 1024, 2048)]
    kernel = cached_autotune(
        configs, ["columns"], reset_to_zero=["out_ptr"], store=MemoryStore(), check=CheckOptions()
    )(atomic_row_sum)
    x, out = torch.rand(32, 4096, device="cuda"), torch.zeros(32, device="cuda")
    kernel[lambda meta: (32, 4096 // meta["BLOCK"])](x, out, 4096)
    record = next(kernel.home.record_sets()).records[0]
    assert [timing.failure for timing in record.measurements if timing.failure] == []


FREE = 2 << 30
ELEMENTS = 1 << 29
"""Of bfloat16: 1 GiB in each tensor; the comparison keeps two copies of the output."""


def double(x, o, n, B: tl.constexpr, FACTOR: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    tl.store(o + at, tl.load(x + at, mask=at < n) * FACTOR, mask=at < n)


@pytest.mark.fills_memory
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
