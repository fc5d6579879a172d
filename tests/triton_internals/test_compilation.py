"""Recorded launches give Triton the same compilation keys again, with any config."""

from __future__ import annotations

import triton
import triton.language as tl
from support.prewarming import DEVICES, HERE
from support.processes import fork_program, in_own_process

from dejavu_cache.triton_internals.hooks import hash_callees_first


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
