"""Cases of an addition whose every measurement is logged; environment variables make it fail.

As a program, it launches the first case, and prints the block that it took.

FATAL names the size and block whose measurement kills the worker. LOG is the file of measurements,
MAKING one that grows while arguments are made, and BENCH_SECONDS the time of a measurement.
"""

from __future__ import annotations

import dataclasses
import math
import os
import sys
import time
from functools import partial

import torch
import triton
import triton.language as tl

from dejavu_cache import cached_autotune, config_space
from dejavu_cache.sweep.suite import Case, Suite

latest = ""
"""Size and block of the launch that is being measured."""


@triton.jit
def add_one(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) + 1, mask=at < n)


def bench(kernel_call, quantiles):
    kernel_call()
    if os.environ.get("FATAL") == f"{latest}":
        os.kill(os.getpid(), 9)
    time.sleep(float(os.environ.get("BENCH_SECONDS", "0.02")))
    with open(os.environ["LOG"], "a") as log:  # appending a short line is atomic
        log.write(f"{latest}\n")
    return [float(latest.split()[1])] * 3


class Logged:
    def __init__(self, fn, form="{n} {BLOCK}"):
        self.fn, self.arg_names, self.form = fn, fn.arg_names, form

    def run(self, *args, **kwargs):
        global latest
        latest = self.form.format(n=args[2], **kwargs)
        return self.fn.run(*args, **kwargs)


BLOCKS = (16, 32, 64, 128)
CONFIGS = [triton.Config({"BLOCK": block}) for block in BLOCKS]
add = cached_autotune(configs=CONFIGS, key=["n"], do_bench=bench)(add_one)
add.fn = Logged(add.fn)


DRAWN = {
    100: {16: 10.0, 32: 11.0, 64: 20.0, 128: 12.0},
    101: {16: 40.0, 32: 11.0, 64: 20.0, 128: 10.0},
    102: {16: 10.0, 32: 12.0, 64: 20.0, 128: 11.0},
}
"""Milliseconds by batch and block, for three cases of one scenario that have different bests."""


class LoggedDraw(Logged):
    def run(self, *args, **kwargs):
        global latest
        latest = f"{args[0].numel()} {kwargs['BLOCK']}"
        if os.environ.get("STOP") == latest:
            raise KeyboardInterrupt
        result = self.fn.run(*args, **kwargs)
        if os.environ.get("WRONG") == latest:
            args[1].add_(1)
        return result


def bench_draw(kernel_call, quantiles):
    kernel_call()
    with open(os.environ["LOG"], "a") as log:
        log.write(f"{latest}\n")
    batch, block = map(int, latest.split())
    return [DRAWN[batch][block]] * 3


draw = cached_autotune(
    configs=[triton.Config({"BLOCK": block}) for block in (32, 16, 64, 128)],
    key=["n"],
    do_bench=bench_draw,
    check=True,
)(add_one)
draw.fn = LoggedDraw(draw.fn)


def bench_space(kernel_call, quantiles):
    """Be fastest with a block of four times the square root, four warps and two stages."""
    kernel_call()
    with open(os.environ["LOG"], "a") as log:
        log.write(f"{latest}\n")
    size, block, warps, stages = (math.log2(int(value)) for value in latest.split())
    return [1.5 ** (abs(block - 2 - size / 2) + abs(warps - 2) / 2 + abs(stages - 1) / 4)] * 3


def no_larger_blocks(configs, named, **more):
    return [config for config in configs if config.kwargs["BLOCK"] <= {**named, **more}["n"]]


space = cached_autotune(
    configs=config_space({"BLOCK": BLOCKS}, num_warps=[1, 2, 4, 8], num_stages=[1, 2, 3]),
    key=["n"],
    prune_configs_by={"early_config_prune": no_larger_blocks},
    do_bench=bench_space,
)(add_one)
space.fn = Logged(space.fn, "{n} {BLOCK} {num_warps} {num_stages}")


def space_cases(sizes, draws="1"):
    """Return cases of a kernel with 48 configs, several of each size."""
    for size in map(int, sizes.split()):
        for draw in range(int(draws)):
            yield dataclasses.replace(case(size), name=f"{size} {draw}", kernel=space)


def _report_making():
    with open(os.environ["MAKING"], "a") as making:
        making.write("x")


def arguments(n):
    if "MAKING" in os.environ:
        _report_making()
        time.sleep(0.5)
    return {"x_ptr": torch.zeros(n), "y_ptr": torch.zeros(n), "n": n}


def case(n):
    return Case(f"n={n}", add, lambda meta: (triton.cdiv(n, meta["BLOCK"]),), partial(arguments, n))


def drawn_arguments(batch):
    return {"x_ptr": torch.zeros(batch), "y_ptr": torch.zeros(batch), "n": 100}


def drawn():
    """Return three cases of one scenario, and between them one of another."""
    cases = [
        Case(
            f"draw {b}",
            draw,
            lambda meta: (triton.cdiv(100, meta["BLOCK"]),),
            partial(drawn_arguments, b),
        )
        for b in DRAWN
    ]
    return [cases[0], case(500), *cases[1:]]


def suite(cases="8", bad=""):
    good = [case(100 + n) for n in range(int(cases))]
    return [*(BAD[name] for name in bad.split()), *good]


def raises():
    raise ZeroDivisionError("mine")


def full():
    raise torch.cuda.OutOfMemoryError("CUDA out of memory")


BAD = {
    "raises": Case("raises", add, (1,), raises),
    "full": Case("full", add, (1,), full),
    "plain": Case("plain", add_one, (1,), partial(arguments, 1)),
    "asks": Case("asks", add, (1,), lambda: arguments(int(input("how many? ")))),
}


empty = Suite(list, why_empty="these sizes need no tuning")
met = Suite(lambda: [case(100)], lambda kernel, scenario: case(scenario.args["n"]))
broken = raises


def leaves():
    sys.exit(3)


def stuck():
    _report_making()
    time.sleep(60)


def strange():
    return [case(100), "n=101"]


def forgetful():
    """Forget to return the cases."""


if __name__ == "__main__":
    add[(7,)](*arguments(100).values())
    print(add.best_config.kwargs["BLOCK"])
