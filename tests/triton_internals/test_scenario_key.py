"""What a launch's code depends on is in its scenario, and in the key that stands for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from dejavu_cache.triton_internals.config_names import DeclaredConfigs
from dejavu_cache.triton_internals.scenario_key import ScenarioKey

SINGLE, HALF = torch.zeros(16), torch.zeros(16, dtype=torch.float16)
KEY = ScenarioKey(["x"], [], {})


@triton.jit
def double(x):
    return x * 2


@triton.jit
def triple(x):
    return x * 3


def describe(tensor: torch.Tensor) -> Any:
    return TensorDescriptor.from_tensor(tensor, [16])


def dtypes(value: Any) -> dict[str, str]:
    return KEY.scenario({"x": value}).dtypes


def raw(value: Any) -> tuple[Any, ...]:
    """Return the key of a launch, which has to be the same by position and hashable."""
    key = KEY.raw(0, (value,), {})
    hash(key)
    assert KEY.raw(0, (), {"x": value})[1:] in ((), (("x", key[1]),))
    return key


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (SINGLE, HALF),
        ((SINGLE,), (HALF,)),
        ((1, (SINGLE, 2)), (1, (HALF, 2))),
        ((SINGLE, HALF), (HALF, SINGLE)),
        ((SINGLE, 1), (1, SINGLE)),
        (describe(SINGLE), describe(HALF)),
        ((describe(SINGLE),), (describe(HALF),)),
        (tl.exp, tl.sin),
        ((tl.exp, 1), (tl.sin, 1)),
        ((tl.sum,), (tl.max,)),
        ((tl.exp, SINGLE), (tl.exp, HALF)),
        ((tl.exp, SINGLE), (tl.sin, SINGLE)),
        (double, triple),
        ((double, 1), (triple, 1)),
        ((double, 1), (double, 2)),
        ((double, 1), (double, True)),
        ((double, SINGLE), (triple, SINGLE)),
        ((double, SINGLE), (double, HALF)),
        ((SINGLE,) * 400, (*(SINGLE,) * 399, HALF)),
    ],
)
def test_what_compiles_differently_is_another_scenario(one: Any, other: Any) -> None:
    assert dtypes(one) == dtypes(one)
    assert dtypes(one) != dtypes(other)
    assert raw(one) != raw(other)


@pytest.mark.parametrize("value", [1, 1.5, None, "a", tl.float16, (), (1, 2), (1, (2.5, None))])
def test_values_without_dtype_or_code_are_in_no_scenario(value: Any) -> None:
    assert dtypes(value) == {}
    assert raw(value) == raw(1)


def test_new_tensors_of_a_tuple_have_the_old_ones_key() -> None:
    assert raw((torch.ones(1), 3)) == raw((SINGLE, 4))


def test_the_texts_in_records_stay() -> None:
    assert dtypes(SINGLE) == {"x": "float32"}
    assert dtypes(tl.sum)["x"].startswith("triton.language.standard.sum ")
    (text,) = dtypes((double, 1)).values()
    assert text.startswith("tuple ")
    assert len(text) == 38
    assert dtypes((SINGLE, 1, describe(HALF))) == {"x": "(float32, _, float16)"}


def test_configs_that_differ_in_tritons_function_are_two() -> None:
    configs = [triton.Config({"ACT": function}) for function in (tl.exp, tl.sin)]
    assert len(DeclaredConfigs("kernel", configs)) == 2
