"""Print the keys of kernels that share a function, in the order in which the arguments name them.

The function reads a global. The keys are what Triton computes, with callees hashed first.
"""

from __future__ import annotations

import sys

import triton
import triton.language as tl

from dejavu_cache.triton_internals.hooks import hash_callees_first

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


hash_callees_first()
kernels = {"first": first, "second": second, "scale": scale, "scale_twice": scale_twice}
keys = {name: kernels[name].cache_key for name in sys.argv[1:]}
for name in sorted(keys):
    used = [variable for variable, _ in kernels[name].used_global_vals]
    print(name, keys[name], *used)
