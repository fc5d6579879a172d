"""Launches that later steps repeat: which arguments take the same compiled kernel."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend
from triton.runtime.jit import JITFunction

from dejavu_cache.triton_internals.binder import form_of_argument
from dejavu_cache.triton_internals.versions import specialize_values

MEMORY = torch.zeros(1 << 10, dtype=torch.int8)
BACKEND = make_backend(GPUTarget("cuda", 90, 32))

integers = st.integers(-(1 << 63), (1 << 64) - 1) | st.sampled_from(
    [0, 1, 2, 16, 17, 1 << 31, (1 << 31) - 1, -(1 << 31), -(1 << 31) - 1, 1 << 63, 1 << 40]
)
tensors = st.builds(
    lambda dtype, offset: MEMORY[8 * offset : 8 * offset + 64].view(dtype),
    st.sampled_from([torch.int8, torch.float16, torch.bfloat16, torch.float32, torch.int64]),
    st.integers(0, 8),
)
values = integers | tensors | st.floats() | st.none()


def takes_one(argument: Any, OPTION: tl.constexpr) -> None:
    pass


KERNEL = JITFunction(takes_one)  # the decorator returns an interpreted function here


def compiled_for(value: Any) -> Any:
    """Return what Triton compiles the kernel for."""
    return specialize_values(KERNEL, BACKEND, {"argument": value})


@given(values, values)
def test_arguments_of_one_form_are_one_kernel_to_triton(one: Any, other: Any) -> None:
    if form_of_argument(one) == form_of_argument(other):
        assert compiled_for(one) == compiled_for(other)


@pytest.mark.parametrize(
    ("one", "other"), [(5, 7), (16, 48), (MEMORY, MEMORY[16:]), (0.5, 2.5), (1 << 20, 1 << 21)]
)
def test_equal_forms_are_found(one: Any, other: Any) -> None:
    assert form_of_argument(one) == form_of_argument(other)


def test_other_types_have_no_form() -> None:
    assert form_of_argument("text") is None
    assert form_of_argument(True) is None
