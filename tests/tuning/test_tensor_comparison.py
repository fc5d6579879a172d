"""Comparisons tolerate what differs between right configs; a few elements do not blind them."""

from __future__ import annotations

import pytest
import torch
from support.result_checks import compare_tensors

from dejavu_cache.tuning.expected_results import TOLERANCES, scale_of

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
LOW_DTYPES = [torch.float8_e4m3fn, torch.float8_e5m2]
MASKS = [-float("inf"), -1e4, -1e9, -1e30, "min"]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def mask_of(mask: float | str, dtype: torch.dtype) -> float:
    number = torch.finfo(dtype).min if mask == "min" else float(mask)
    return float(torch.tensor(number, dtype=torch.float64).to(dtype))


@pytest.mark.parametrize("outlier", [1e4, 1e9, 1e20, "largest"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_large_element_does_not_hide_that_the_others_are_wrong(
    dtype: torch.dtype, outlier: float | str
) -> None:
    largest = torch.finfo(dtype).max
    expected = torch.rand(4096, generator=torch.Generator().manual_seed(0)).add(1).to(dtype)
    expected[-1] = -largest if outlier == "largest" else -min(float(outlier), largest)
    wrong = expected.clone()
    wrong[:41] = 0
    assert "differs in 41 of 4096" in compare_tensors(wrong, expected)
    assert compare_tensors(expected.clone(), expected) == ""


@pytest.mark.parametrize("share", [0.01, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_wrong_block_beside_masked_elements_is_different(
    dtype: torch.dtype, mask: float | str, share: float
) -> None:
    expected = random(200, 100).to(dtype)
    masked = int(share * expected.numel())
    expected.view(-1)[-masked:] = mask_of(mask, dtype)
    wrong = expected.clone()
    wrong[2:4] = 0
    assert compare_tensors(wrong, expected) != ""
    wrong[2:4] = random(2, 100, seed=1).to(dtype)
    assert compare_tensors(wrong, expected) != ""
    rounded = torch.where(expected.abs() > 1e3, expected, expected * (1 + torch.finfo(dtype).eps))
    assert compare_tensors(rounded, expected) == ""


@pytest.mark.parametrize("dtype", LOW_DTYPES)
def test_a_wrong_block_of_8_bit_numbers_is_different_beside_outliers(dtype: torch.dtype) -> None:
    expected = random(200, 100)
    expected[0, :50] = 400.0
    wrong = expected.clone()
    wrong[2:4] = 0
    assert compare_tensors(wrong.to(dtype), expected.to(dtype)) != ""
    assert compare_tensors((expected * 1.06).to(dtype), expected.to(dtype)) == ""


@pytest.mark.parametrize("depth", [64, 512, 2048, 8192])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("outlier", [0.0, 60.0, 1e4])
def test_sums_in_another_order_agree(dtype: torch.dtype, depth: int, outlier: float) -> None:
    left, right = random(48, depth, seed=1), random(depth, 64, seed=2)
    left[5] *= outlier or 1  # a row of large terms: its elements near 0 have large errors
    expected = left @ right
    order = torch.randperm(depth, generator=torch.Generator().manual_seed(3))
    actual = torch.zeros_like(expected)
    for part in order.split(32):
        actual += left[:, part] @ right[part]
    if outlier:
        expected[-1, -3:] = actual[-1, -3:] = torch.finfo(dtype).max
    assert compare_tensors(actual.to(dtype), expected.to(dtype)) == ""


@pytest.mark.parametrize("depth", [64, 512, 8192])
def test_rounded_factors_agree(depth: int) -> None:
    """TF32 has the 10 bits of float16's mantissa."""
    left, right = random(64, depth, seed=1), random(depth, 64, seed=2)
    actual = left.half().float() @ right.half().float()
    expected = left @ right
    expected[0, 0] = actual[0, 0] = 1e9
    assert compare_tensors(actual, expected) == ""


def test_sums_of_two_sizes_agree() -> None:
    """A third of the rows is large, and their elements near 0 are larger than all small ones."""
    left, right = random(96, 512, seed=1), random(512, 64, seed=2)
    left[::3] *= 1e4
    expected = left @ right
    actual = left.flip(1) @ right.flip(0)
    assert compare_tensors(actual, expected) == ""
    actual[1] = 0
    assert compare_tensors(actual, expected) != ""


@pytest.mark.parametrize("dtype", DTYPES)
def test_sparse_results_are_compared(dtype: torch.dtype) -> None:
    expected = torch.zeros(2_200_000, dtype=dtype)
    expected[1001] = 3.0
    assert compare_tensors(expected * (1 + torch.finfo(dtype).eps), expected) == ""
    wrong = expected.clone()
    wrong[1001] = 0
    assert "differs in 1 of" in compare_tensors(wrong, expected)
    assert "differs in 2200000 of" in compare_tensors(1 - expected, expected)


@pytest.mark.parametrize("value", [0.0, 1e-40, 1e-30, 1.0, 1e30])
def test_tensors_of_one_value_are_compared(value: float) -> None:
    expected = torch.full((100,), value)
    assert compare_tensors(expected * (1 + 1e-6), expected) == ""
    wrong = expected.clone()
    wrong[0] = 2 * value or 1e-30
    assert "differs in 1 of 100" in compare_tensors(wrong, expected)


def test_tensors_without_finite_elements_are_compared() -> None:
    for empty in (torch.empty(0), torch.full((3,), float("nan")), torch.full((3,), float("inf"))):
        assert compare_tensors(empty.clone(), empty) == ""
    assert compare_tensors(torch.zeros(3), torch.full((3,), float("inf"))) != ""


def test_tolerances_grow_with_coarser_types() -> None:
    eps = [torch.finfo(dtype).eps for dtype in DTYPES]
    assert eps == sorted(eps)
    assert list(TOLERANCES.values()) == sorted(TOLERANCES.values())


def test_the_sample_of_a_large_tensor_keeps_no_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    samples: list[torch.Tensor] = []
    concatenate = torch.cat

    def note_samples(tensors: list[torch.Tensor]) -> torch.Tensor:
        samples.extend(tensors)
        return concatenate(tensors)

    monkeypatch.setattr(torch, "cat", note_samples)
    assert scale_of(torch.ones(64, 1 << 16)) == 1.0
    assert len(samples) == 4
    for sample in samples:
        assert sample.untyped_storage().nbytes() == sample.nbytes
