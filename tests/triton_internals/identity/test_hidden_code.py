"""Code and values that lie where a reader of sources does not look at first."""

from __future__ import annotations

import enum
import struct
import textwrap
from pathlib import Path
from typing import Any

import pytest
import triton
import triton.language as tl
from support.kernels import load

from dejavu_cache.errors import UnreadableKernelError
from dejavu_cache.triton_internals.compiler_settings import _text
from dejavu_cache.triton_internals.config_names import describe
from dejavu_cache.triton_internals.source_hash import source_hash, value_hash

NEEDS_TRITON_3_5 = pytest.mark.skipif(
    not hasattr(triton, "constexpr_function"), reason="the kernels need Triton 3.5"
)
HEAD = """
import collections, dataclasses, enum, functools, math, struct, types
import triton
import triton.language as tl
from triton.language.extra import libdevice
"""
KERNEL = """
@triton.jit
def k(x):
    tl.store(x, act(tl.load(x)))
"""
TILED = """
@triton.heuristics({"B": block})
@triton.jit
def k(x, B: tl.constexpr):
    tl.store(x + tl.arange(0, B), B)
"""


def hash_of(folder: Path, source: str) -> str:
    return source_hash(load(folder / "kernels.py", HEAD + source).k)


@pytest.mark.parametrize(
    ("source", "one", "other"),
    [
        ("from triton.language import @@ as act", "exp", "sin"),
        ("act = tl.@@", "exp", "sin"),
        ("act = @@", "tl.exp", "libdevice.exp"),
        ("act = tl.exp if @@ else tl.sin", "True", "False"),
    ],
)
def test_functions_of_triton_under_other_names_are_told_apart(
    tmp_path: Path, source: str, one: str, other: str
) -> None:
    hashes = {hash_of(tmp_path, source.replace("@@", name) + KERNEL) for name in (one, other)}
    assert len(hashes) == 2


def test_a_name_that_means_what_it_says_costs_nothing(tmp_path: Path) -> None:
    called = KERNEL.replace("act(", "exp(")
    imported = hash_of(tmp_path, f"from triton.language import exp{called}")
    assert imported == hash_of(tmp_path, f"exp = tl.exp{called}")


HEURISTICS = {
    "a callable object with an `fn`": """
        class Scaled:
            def __init__(self, fn):
                self.fn = fn
            def __call__(self, args):
                return self.fn(args) * @@
        @Scaled
        def block(args):
            return 1
        """,
    "a nested function's decorator": """
        def scaled(by):
            return lambda function: lambda args: function(args) * by
        def block(args):
            @scaled(@@)
            def inner(args):
                return 1
            return inner(args)
        """,
    "a wrapper's default": """
        def wrapping(function):
            @functools.wraps(function)
            def wrapper(args, size=@@):
                return size
            return wrapper
        @wrapping
        def block(args):
            return 1
        """,
    "a function's attribute, by another name": """
        def tile(args):
            return 1
        tile.size = @@
        def size_of(function):
            return function.size
        def block(args):
            return size_of(tile)
        """,
    "an attribute set on an enum": """
        class Mode(enum.Enum):
            FAST = 1
        Mode.TILES = {"FAST": @@}
        def block(args):
            return Mode.TILES["FAST"]
        """,
    "an attribute set on an enum's member": """
        class Mode(enum.Enum):
            FAST = 1
        Mode.FAST.tile = @@
        mode = Mode.FAST
        def block(args):
            return mode.tile
        """,
    "a private slot": """
        class Plan:
            __slots__ = ("__size",)
            def __init__(self, size):
                self.__size = size
            def size(self):
                return self.__size
        plan = Plan(@@)
        def block(args):
            return plan.size()
        """,
    "an attribute of a named tuple": """
        class Plan(collections.namedtuple("Base", "a")):
            pass
        plan = Plan(1)
        plan.size = @@
        def block(args):
            return plan.size
        """,
    "metadata of a field": """
        @dataclasses.dataclass
        class Plan:
            a: int = dataclasses.field(default=1, metadata={"size": @@})
        plan = Plan()
        def block(args):
            return dataclasses.fields(plan)[0].metadata["size"]
        """,
}


@pytest.mark.parametrize("source", HEURISTICS.values(), ids=HEURISTICS.keys())
def test_what_a_heuristic_runs_is_told_apart(tmp_path: Path, source: str) -> None:
    texts = [textwrap.dedent(source).replace("@@", size) for size in ("64", "128")]
    assert len({hash_of(tmp_path, text + TILED) for text in texts}) == 2


def test_a_class_with_registered_subclasses_is_refused(tmp_path: Path) -> None:
    source = """
class Wide(abc.ABC):
    pass
@@
def block(args):
    return 64 if isinstance(args["x"], Wide) else 128
"""
    assert hash_of(tmp_path, f"import abc{source.replace('@@', '')}{TILED}")
    with pytest.raises(UnreadableKernelError, match="Wide is a class with registered subclasses"):
        hash_of(tmp_path, f"import abc{source.replace('@@', 'Wide.register(int)')}{TILED}")


def test_a_class_that_is_not_where_it_says_is_refused(tmp_path: Path) -> None:
    source = """
Plan = dataclasses.make_dataclass("Plan", [("size", int, dataclasses.field(default=64))])
plan = Plan()
def block(args):
    return plan.size
"""
    with pytest.raises(UnreadableKernelError, match="Plan, which has no encoding"):
        hash_of(tmp_path, source + TILED)


@NEEDS_TRITON_3_5
def test_what_wraps_a_constexpr_function_counts(tmp_path: Path) -> None:
    source = """
def scaled(function):
    @functools.wraps(function)
    def wrapper(n):
        return function(n) * @@
    return wrapper
@triton.constexpr_function
@scaled
def size(n):
    return n
@triton.jit
def k(x):
    tl.store(x, size(2))
"""
    assert len({hash_of(tmp_path, source.replace("@@", by)) for by in ("2", "3")}) == 2


class Size(enum.IntEnum):
    SMALL = 64


def test_an_enum_in_a_config_is_no_number() -> None:
    described = [describe(triton.Config({"B": value})) for value in (Size.SMALL, 64)]
    assert described[0] != described[1]


def test_functions_of_triton_in_configs_are_told_apart() -> None:
    assert value_hash(tl.exp) != value_hash(tl.sin)


def test_numbers_that_are_none_differ_by_their_bits() -> None:
    other: Any = struct.unpack(">d", bytes.fromhex("fff8000000000001"))[0]
    assert value_hash(other) != value_hash(float("nan"))
    assert value_hash(-float("nan")) != value_hash(float("nan"))


def test_long_settings_are_told_apart() -> None:
    texts = [_text("ptxas_options", "-v " * 200 + level) for level in ("-O0", "-O3")]
    assert texts[0] != texts[1]
    assert max(map(len, texts)) <= 500
