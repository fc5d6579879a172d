"""Probes change what they must, and keep what has no neighbour: NaN and infinities."""

from __future__ import annotations

import pytest
import torch

from dejavu_cache.tuning import probe_contents
from dejavu_cache.tuning.probe_contents import (
    blank_elements,
    checksums,
    fill_blank,
    is_nudged,
    nudge,
)

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
]


@pytest.mark.parametrize("dtype", DTYPES)
def test_nudges_change_finite_elements_alone(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_contents, "PIECE", 8)
    values = torch.tensor([0.0, 1.0, -3.5, 224.0, float("nan"), float("inf")]).repeat(6, 1)
    tensor = values.to(dtype).t()
    original = tensor.clone()
    for number in range(1, 8):
        tensor.copy_(original)
        nudge(tensor, number)
        assert is_nudged(tensor, original, number)
        assert not is_nudged(original, original, number)
        assert not is_nudged(tensor, original, number % 7 + 1)
        wide, before = tensor.double(), original.double()
        finite = before.isfinite()
        assert torch.equal(wide.isfinite(), finite)
        assert torch.equal(wide[~finite].isnan(), before[~finite].isnan())


@pytest.mark.parametrize("dtype", DTYPES)
def test_blanks_are_nan(dtype: torch.dtype) -> None:
    tensor = torch.ones(5, 4).to(dtype).t()
    mask = torch.zeros(4, 5, dtype=torch.bool)
    mask[1] = True
    fill_blank(tensor, mask)
    assert torch.equal(tensor.float().isnan(), mask)
    assert torch.equal(blank_elements(tensor), mask)
    scalar = torch.ones(()).to(dtype)
    nudge(scalar, 1)
    assert is_nudged(scalar, torch.ones(()).to(dtype), 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_checksums_show_a_bit_and_an_exchange(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_contents, "SUMMED", 8)
    tensor = torch.arange(30.0).reshape(5, 6).to(dtype).t()
    before = checksums(tensor)
    assert torch.equal(checksums(tensor.clone()), before)
    tensor[2, 3] = 0.25
    assert not torch.equal(checksums(tensor), before)
    tensor = torch.arange(30.0).reshape(5, 6).to(dtype).t()
    tensor[2, 3], tensor[4, 1] = tensor[4, 1].clone(), tensor[2, 3].clone()
    assert not torch.equal(checksums(tensor), before)
    scalar = torch.ones(()).to(dtype)
    assert not torch.equal(checksums(scalar), checksums(torch.zeros(()).to(dtype)))
