"""Recorded launches give Triton the same keys again, and its launchers tell what they expand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import triton
import triton.backends.nvidia.driver as cuda
import triton.language as tl
from support.prewarming import DEVICES, HERE
from support.processes import fork_program, in_own_process

from dejavu_cache.triton_internals.hooks import hash_callees_first
from dejavu_cache.triton_internals.versions import COVERED, expandable_descriptors


def test_the_key_is_the_one_that_triton_looks_for() -> None:
    """Kernels with all kinds of arguments, for three architectures, in a compiled program."""
    targets = ("cuda:90", "cuda:100", "hip:gfx942")[: len(DEVICES)]
    fork_program(
        "prewarm/check_compilation_keys.py", *targets, TRITON_INTERPRET="0", PYTHONPATH=str(HERE)
    )


FACTOR = tl.constexpr(3)


@triton.jit
def scale(x):
    return x * FACTOR


@triton.jit
def scale_twice(x):
    return scale(scale(x))


@triton.jit
def first(x):
    tl.store(x, scale_twice(tl.load(x)))


@triton.jit
def second(x):
    tl.store(x, scale(tl.load(x)) + FACTOR)


@in_own_process(TRITON_INTERPRET="0")
def test_keys_do_not_depend_on_the_kernel_that_a_process_launches_first() -> None:
    """Else a program that launches kernels in another order than the builder compiles them."""
    hash_callees_first()
    functions, found = [each.fn for each in (first, second, scale, scale_twice)], set()
    for start in range(len(functions)):
        kernels = [triton.jit(function) for function in functions]  # as a new process has them
        globals().update({kernel.fn.__name__: kernel for kernel in kernels})
        keys = {kernel: kernel.cache_key for kernel in kernels[start:] + kernels[:start]}
        found.add(tuple(keys[kernel] for kernel in kernels))
        for kernel in kernels:
            assert [variable for variable, _ in kernel.used_global_vals] == ["FACTOR"]
    assert len(found) == 1


MAPS = [{"swizzle": 1}, {"swizzle": 2}]
DESCRIPTOR = "tensordesc<bf16[16, 64]>"


def kernel_of(signature: list[Any], maps: list[dict[str, int]], **changes: Any) -> Any:
    """Return a kernel whose launcher is Triton's own for a signature, around a built-in."""
    launcher = object.__new__(cuda.CudaLauncher)
    launcher.global_scratch_size = launcher.profile_scratch_size = 0
    launcher.launch = cuda.wrap_handle_tensordesc(len, dict(enumerate(signature)), maps)
    vars(launcher).update(changes)
    return SimpleNamespace(run=launcher)


covered = pytest.mark.skipif(not COVERED, reason="no kernel has descriptors there")


@covered
def test_descriptors_are_found_by_their_place() -> None:
    kernel = kernel_of(["*fp32", DESCRIPTOR, "constexpr", DESCRIPTOR, "i32"], MAPS)
    assert expandable_descriptors(kernel) == {1: MAPS[0], 3: MAPS[1]}


@covered
def test_a_kernel_without_descriptors_has_none_to_expand() -> None:
    assert expandable_descriptors(kernel_of(["*fp32", "i32"], [])) == {}


@covered
@pytest.mark.skipif(not hasattr(cuda, "wrap_handle_tensordesc_impl"), reason="since Triton 3.8")
def test_descriptors_inside_of_tuples_are_left_to_triton() -> None:
    assert expandable_descriptors(kernel_of([DESCRIPTOR, ("i32", DESCRIPTOR)], MAPS)) == {}


@covered
@pytest.mark.parametrize(
    "change", [{"global_scratch_size": 64}, {"profile_scratch_size": 64}, {"gsan_enabled": True}]
)
def test_a_launch_that_needs_more_than_arguments_is_left_to_triton(change: dict[str, Any]) -> None:
    assert expandable_descriptors(kernel_of([DESCRIPTOR], MAPS[:1], **change)) == {}
