"""A sweep of what an operation launches under a library's autotuner; as a program, it runs it."""

import torch
import triton
import triton.language as tl
from operation_cases import cases_of, operations_of

import dejavu_cache

dejavu_cache.install()

CONFIGS = [triton.Config({"BLOCK": block}) for block in (16, 32)]


@triton.heuristics({"EVEN": lambda named: named["n"] % 2 == 0})
@triton.autotune(CONFIGS, key=["FACTOR"])
@triton.jit
def scale_kernel(x, y, n, FACTOR: tl.constexpr, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * FACTOR, mask=at < n)


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor=3):
        y, n = torch.empty_like(x), x.numel()
        scale_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, n, FACTOR=factor)
        return y

    @staticmethod
    def backward(ctx, gradient):
        return Scale.forward(ctx, gradient, 4)


def scale(length):
    return Scale.apply(torch.ones(length).requires_grad_())


def suite():
    yield from cases_of(operations_of([scale], [(100,), (300,), (100,)]))


if __name__ == "__main__":
    operations_of([scale], [(200,)])[0].run()
