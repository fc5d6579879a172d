"""Outputs are filled with what no launch computes."""

from __future__ import annotations

import pytest
import torch
from support.result_checks import compare_tensors

from dejavu_cache.tuning.expected_results import Output

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
def test_every_element_of_the_filling_is_far_from_what_was_there(dtype: torch.dtype) -> None:
    """Also from a result that was there already, and that the launch does not write again."""
    values = torch.cat([torch.zeros(1), torch.logspace(-2, 2, 200), -torch.logspace(-2, 2, 200)])
    tensor = values.reshape(401).to(dtype)
    original = tensor.clone()
    output = Output(tensor, tensor.clone())
    output.restore(filled=True)
    assert compare_tensors(tensor, original).startswith("differs in 401 of 401 elements")
    output.restore()
    assert compare_tensors(tensor, original) == ""


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
def test_what_the_default_writes_must_be_written(dtype: torch.dtype) -> None:
    tensor = torch.arange(20).reshape(5, 4).to(dtype).t()
    right = tensor.clone()
    output = Output(tensor, tensor.clone())
    output.restore(filled=True)
    tensor[1:].copy_(right[1:])
    assert output.expect_present(True)
    assert output.is_visible
    assert output.holds_results
    assert output.describe_difference(None, True) == ""
    for written, difference in ((4, ""), (2, "differs in 5 of 20 elements")):
        output.restore(filled=True)
        tensor[4 - written :].copy_(right[4 - written :])
        assert output.describe_difference(None, True).startswith(difference)
