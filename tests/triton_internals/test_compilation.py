"""Recorded launches give Triton the same compilation keys again, with any config."""

from __future__ import annotations

from support.prewarming import DEVICES, HERE
from support.processes import fork_program


def test_the_key_is_the_one_that_triton_looks_for() -> None:
    """Kernels with all kinds of arguments, for three architectures, in a compiled program."""
    targets = ("cuda:90", "cuda:100", "hip:gfx942")[: len(DEVICES)]
    fork_program(
        "prewarm/check_compilation_keys.py", *targets, TRITON_INTERPRET="0", PYTHONPATH=str(HERE)
    )


def test_keys_do_not_depend_on_the_kernel_that_a_process_launches_first() -> None:
    """Else a program that launches kernels in another order than the builder compiles them."""
    names = ["first", "second", "scale", "scale_twice"]
    orders = [names[start:] + names[:start] for start in range(len(names))]
    (lines,) = {
        fork_program("hash_kernels.py", *order, TRITON_INTERPRET="0").stdout for order in orders
    }
    assert [line.split()[2:] for line in lines.splitlines()] == [["FACTOR"]] * len(names)
