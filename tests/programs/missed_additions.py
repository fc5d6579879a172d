"""Two additions and a suite that makes cases of the scenarios that programs missed."""

from functools import partial

import torch
import triton
import triton.language as tl

from dejavu_cache import cached_autotune
from dejavu_cache.sweep.suite import Case, Suite

CONFIGS = [triton.Config({"BLOCK": block}) for block in (16, 32)]


@cached_autotune(configs=CONFIGS, key=["n"])
@triton.jit
def add_one(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) + 1, mask=at < n)


@cached_autotune(configs=CONFIGS, key=["m"])
@triton.jit
def add_two(x_ptr, y_ptr, m, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < m) + 2, mask=at < m)


def case(n):
    if n == 400:
        raise ValueError("mine")
    return Case(
        f"n={n}", add_one, lambda meta: (triton.cdiv(n, meta["BLOCK"]),), partial(arguments, n)
    )


def arguments(n):
    return {"x_ptr": torch.zeros(n), "y_ptr": torch.zeros(n), "n": n}


def cases():
    return [case(100), case(200)]


def for_scenario(kernel, scenario):
    return case(scenario.args["n"]) if kernel.endswith("add_one") else None


suite = Suite(cases, for_scenario=for_scenario)
fixed = Suite(cases)
