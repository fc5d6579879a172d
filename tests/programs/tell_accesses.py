"""Print what compiled kernels do with their arguments, as JSON; no GPU is needed."""

from __future__ import annotations

import json
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from dejavu_cache.triton_internals.argument_access import accesses_of_kernel

FLOATS = {"x": "*fp32", "o": "*fp32", "n": "i32"}


@triton.jit
def copy(x, o, n):
    at = tl.arange(0, 16)
    tl.store(o + at, tl.load(x + at, mask=at < n), mask=at < n)


@triton.jit
def walk(x, o, n):
    """Move both pointers in one loop."""
    at = tl.arange(0, 16)
    source, target = x + at, o + at
    for _ in range(n):
        tl.store(target, tl.load(source))
        source += 16
        target += n


@triton.jit
def choose(x, o, n):
    at = tl.arange(0, 16)
    target = o + at
    if n > 3:
        target = target + n
    tl.store(target, tl.load(x + at))


@triton.jit
def count(x, o, n):
    tl.atomic_add(o, 1.0)


@triton.jit
def lock(x, o, n):
    while tl.atomic_cas(o, 0, 1) == 1:
        pass
    tl.store(x, 1.0)


@triton.jit
def tuples(xs, n):
    tl.store(xs[1], tl.load(xs[0]))


@triton.jit
def descriptors(x, o, n):
    o.store([0, 0], x.load([0, 0]))


@triton.jit
def behind_pointers(x, o, n):
    tl.store(tl.load(x).to(tl.pointer_type(tl.float32)), tl.load(o))


@triton.jit(noinline=True)
def helper(o):
    tl.store(o, 1.0)


@triton.jit
def called(x, o, n):
    helper(o)


@triton.jit
def nothing(x, o, n):
    pass


DESCRIPTORS = {"x": "tensordesc<fp32[32,32]>", "o": "tensordesc<fp32[32,32]>", "n": "i32"}
SIGNATURES: dict[Any, dict[str, Any]] = {
    lock: {**FLOATS, "o": "*i32"},
    tuples: {"xs": ("*fp32", "*fp32"), "n": "i32"},
    descriptors: DESCRIPTORS,
    behind_pointers: {**FLOATS, "x": "*i64"},
}


def main() -> None:
    found = {}
    for kernel in (
        copy, walk, choose, count, lock, tuples, descriptors, behind_pointers, called, nothing,
    ):  # fmt: skip
        source = ASTSource(kernel, SIGNATURES.get(kernel, FLOATS), {})
        accesses = accesses_of_kernel(triton.compile(source, target=GPUTarget("cuda", 90, 32)))
        found[kernel.__name__] = accesses and [
            " ".join(sorted(accesses.read)),
            " ".join(sorted(accesses.written)),
            accesses.elsewhere,
        ]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
