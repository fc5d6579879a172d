"""Kernels with each kind of feature that an identity must see, as text with their launches."""

from typing import NamedTuple


class CorpusKernel(NamedTuple):
    """A module's text with a kernel `k`, and how it is launched.

    Attributes:
        source: the text of the module.
        config: parameters of the configs that the kernel is tuned with.
        n: value of the argument `n`, or None for a kernel that has only `x` and `y`, two tensors.
        targets: what it can be compiled for.
    """

    source: str
    config: dict[str, int]
    n: int | None = None
    targets: tuple[str, ...] = ("cuda:90", "gfx942")


_HEAD = """import dataclasses
import enum
import triton
import triton.language as tl
from triton.language.core import _aggregate as aggregate

"""


def _kernel(source: str, n: int | None = None, **config: int) -> CorpusKernel:
    return CorpusKernel(_HEAD + source, config, n)


CORPUS: dict[str, CorpusKernel] = {
    "helpers": _kernel(
        '''SCALE = tl.constexpr(3)
SHIFT = tl.constexpr(1.5)

@triton.jit
def shift(v, by=2.0):
    """Shift."""
    return v + SHIFT * by

@triton.jit(noinline=True)
def scale(v):
    # by a constant
    return v * SCALE - 4

@triton.jit
def k(x, y, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + at, mask=at < n, other=7.0)
    if n > 12:
        v = shift(v)
    tl.store(y + at, v, mask=at < n)
    tl.store(y + n, scale(tl.load(x)))
''',
        n=1001,
        B=64,
    ),
    "reduction": _kernel(
        """EPS = tl.constexpr(0.001)

@triton.jit
def combine(a, b):
    return a + b * 2.0

@triton.jit
def k(x, y, n, B: tl.constexpr, ROWS: tl.constexpr = 4):
    at = tl.arange(0, B)
    total = tl.zeros((B,), dtype=tl.float32)
    for row in tl.static_range(ROWS):
        total += tl.load(x + row * n + at).to(tl.float16).to(tl.float32)
    peak = tl.max(total, axis=0)
    mean = tl.sum(total, axis=0) / n + EPS
    tl.store(y + at, tl.exp(total - peak) / mean)
    tl.store(y + 1024, tl.reduce(total, 0, combine))
""",
        n=1001,
        B=128,
        ROWS=4,
    ),
    "constants": _kernel(
        """class Mode(enum.Enum):
    TWICE = 2
    THRICE = 3

@dataclasses.dataclass(frozen=True)
class Plan:
    depth: int
    factor: float = 1.25

class Limits:
    LOW = 5
    HIGH = 11

MODE = tl.constexpr(Mode.TWICE)
PLAN = tl.constexpr(Plan(2, 2.5))
TABLE = {"offset": 9, "deep": [1, {"value": 13}]}

@triton.constexpr_function
def offset(n):
    return TABLE["offset"] + n * TABLE["deep"][1]["value"]

@triton.constexpr_function
def depth():
    return PLAN.value.depth

@triton.constexpr_function
def scale():
    return PLAN.value.factor * MODE.value.value + Limits.LOW

@triton.jit
def k(x, y):
    v = tl.load(x)
    for i in tl.static_range(depth()):
        v = v * scale() + i
    tl.store(y + offset(2), v)
"""
    ),
    "aggregate": _kernel(
        """@aggregate
class State:
    a: tl.constexpr
    b: tl.constexpr

    @triton.constexpr_function
    def __init__(self, a):
        self.a = tl.constexpr(a + 1)
        self.b = tl.constexpr(a * 3)

    @triton.jit
    def scale(self, v):
        return v * 2 * self.a - self.b

@triton.jit
def k(x, y):
    state = State(2)
    tl.store(y, state.scale(tl.load(x)))
"""
    ),
    "heuristics": _kernel(
        """TABLE = {"small": 2, "large": 8}

def make(factor):
    def rows(args):
        return (args["n"] + factor - 1) // factor % 5 + 3
    return rows

def step(args):
    return TABLE["small"] + args["B"] // 32

@triton.heuristics({"ROWS": make(7), "STEP": step})
@triton.heuristics({"EVEN": lambda args: args["n"] % 2 == 0})
@triton.jit
def k(x, y, n, B: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr, EVEN: tl.constexpr):
    at = tl.arange(0, B)
    v = tl.load(x + at, mask=at < n, other=0.0)
    for row in tl.static_range(ROWS):
        v = v * 1.5 + row
    if EVEN:
        v = v - 2.0
    tl.store(y + at * STEP, v, mask=at < n)
""",
        n=1001,
        B=64,
    ),
    "descriptor": _kernel(
        """ROWS = tl.constexpr(16)

@triton.constexpr_function
def columns(block, by=1):
    return block // by

@triton.jit
def k(x, y, n, B: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [n, 64], [64, 1], [ROWS, columns(B)])
    v = source.load([0, 0])
    rows = tl.arange(0, ROWS)[:, None] * 64 + tl.arange(0, columns(B))[None, :]
    tl.store(y + rows, tl.cumsum(v, axis=1) * 2.0)
""",
        n=1001,
        B=32,
    ),
    "gluon": CorpusKernel(
        _HEAD
        + """from triton.experimental import gluon
from triton.experimental.gluon import language as gl

LAYOUT = gl.constexpr(gl.BlockedLayout([2], [32], [4], [0]))

@gluon.jit
def k(x, y, N: gl.constexpr):
    i = gl.arange(0, N, layout=LAYOUT)
    gl.store(y + i, gl.load(x + i) * 2.0 + 1.0)
""",
        {"N": 256},
        targets=("cuda:90",),
    ),
}
"""The kernels by name."""
