"""Tune and launch a kernel as a user whom the user database does not know.

Arguments: `decorator` or `install`, and variables to set as NAME=VALUE.
"""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Callable
from typing import Any


def _unknown(uid: int) -> Any:
    raise KeyError(f"getpwuid(): uid not found: {uid}")


pwd.getpwuid = _unknown
how, *variables = sys.argv[1:]
for name in ("HOME", "XDG_CACHE_HOME", "DEJAVU_CACHE_URL"):
    os.environ.pop(name, None)
os.environ.update(dict(variable.split("=", 1) for variable in variables))

import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402

import dejavu_cache  # noqa: E402

if how == "install":
    dejavu_cache.install()
autotune: Any = triton.autotune if how == "install" else dejavu_cache.cached_autotune


def _bench(call: Callable[[], None], quantiles: Any = None) -> list[float]:
    call()
    return [1.0] * 3


@autotune([triton.Config({"BLOCK": block}) for block in (16, 32)], ["n"], do_bench=_bench)
@triton.jit
def add_one(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)


x = torch.zeros(64)
add_one[lambda meta: (triton.cdiv(64, meta["BLOCK"]),)](x, 64)
assert bool((x == 1).all())
