"""Recorded launches give Triton the same keys again, and its launchers tell what they expand."""

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


@pytest.mark.skipif(not COVERED, reason="no kernel has descriptors there")
@pytest.mark.parametrize(
    ("signature", "maps", "changes", "expandable"),
    [
        (["*fp32", DESCRIPTOR, "constexpr", DESCRIPTOR, "i32"], MAPS, {}, {1: MAPS[0], 3: MAPS[1]}),
        (["*fp32", "i32"], [], {}, {}),
        pytest.param(
            [DESCRIPTOR, ("i32", DESCRIPTOR)], MAPS, {}, {},
            marks=pytest.mark.skipif(
                not hasattr(cuda, "wrap_handle_tensordesc_impl"), reason="since Triton 3.8"
            ),
        ),
        ([DESCRIPTOR], MAPS[:1], {"global_scratch_size": 64}, {}),
        ([DESCRIPTOR], MAPS[:1], {"profile_scratch_size": 64}, {}),
        ([DESCRIPTOR], MAPS[:1], {"gsan_enabled": True}, {}),
    ],
)  # fmt: skip
def test_descriptors_are_found_by_their_place(
    signature: list[Any], maps: list[Any], changes: dict[str, Any], expandable: dict[int, Any]
) -> None:
    """Those in tuples, and launches that need more than their arguments, are left to Triton."""
    assert expandable_descriptors(kernel_of(signature, maps, **changes)) == expandable
