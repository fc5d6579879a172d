"""Outputs are filled with what no launch computes."""

from __future__ import annotations

import pytest
import torch

from dejavu_cache.tuning.expected_results import find_filler

FLOATS = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_what_is_written_is_told_from_the_filler(dtype: torch.dtype) -> None:
    original = torch.arange(20.0).reshape(5, 4).to(dtype).t()
    result = torch.arange(20, 0, -1.0).reshape(5, 4).to(dtype).t()
    tensor = result.clone()
    filler = find_filler(tensor, original, with_integers=True)
    assert filler is not None
    filler.write(tensor, original)
    assert bool(filler.holds(tensor, original).all())
    assert filler.is_nan == dtype.is_floating_point
    if filler.is_nan:
        assert bool(tensor.float().isnan().all())
    tensor[1].copy_(result[1])
    assert torch.equal(
        filler.holds(tensor, original).all(1), torch.tensor([True, False, True, True])
    )


def test_integers_are_filled_only_where_that_is_safe() -> None:
    numbers = torch.arange(8)
    assert find_filler(numbers, numbers.clone(), with_integers=False) is None


def test_a_filler_is_no_result() -> None:
    original = torch.zeros(256, dtype=torch.uint8)
    assert find_filler(torch.arange(256).to(torch.uint8), original, with_integers=True) is None
    result = torch.full((256,), 0x5A, dtype=torch.uint8)
    assert find_filler(result, original, with_integers=True) is not None
