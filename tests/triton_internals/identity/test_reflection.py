"""What a hash leaves out on purpose (docstrings, lines, modules) may not be read as a value."""

from __future__ import annotations

from pathlib import Path

import pytest
import triton
from support.kernels import load

from dejavu_cache.triton_internals.identity import identify

HEAD = """
import functools, operator
import triton, triton.language as tl

class Plan:
    'text'

@triton.jit
def helper(n):
    'text'
    return n

def python_helper():
    'text'
"""
HEURISTIC = """
def block(args):
    return {}
@triton.heuristics({{"B": block}})
@triton.jit
def k(x, n, B: tl.constexpr):
    tl.store(x + tl.arange(0, B), B)
"""
CONSTEXPR_FUNCTION = """
@triton.constexpr_function
def block(args):
    return {}
@triton.jit
def k(x, n, B: tl.constexpr):
    tl.store(x + tl.arange(0, B), block(B))
"""
NEEDS_TRITON_3_5 = pytest.mark.skipif(
    not hasattr(triton, "constexpr_function"), reason="the kernels need Triton 3.5"
)


@pytest.mark.parametrize(
    ("expression", "named"),
    [
        ("len(python_helper.__doc__)", "__doc__"),
        ("len(block.__doc__ or '')", "__doc__"),
        ("len(Plan().__doc__)", "__doc__"),
        ("len(helper.__doc__)", "__doc__"),
        ("len(getattr(Plan(), '__doc__'))", "__doc__"),
        ("len(operator.attrgetter('__doc__')(Plan()))", "__doc__"),
        ("python_helper.__code__.co_firstlineno", "__code__"),
        ("len(python_helper.__module__)", "__module__"),
        ("python_helper.__globals__['SIZE']", "__globals__"),
        ("len(Plan.__subclasses__())", "__subclasses__"),
        ("helper.starting_line_number", "starting_line_number"),
    ],
)
@pytest.mark.parametrize(
    "kernel", [HEURISTIC, pytest.param(CONSTEXPR_FUNCTION, marks=NEEDS_TRITON_3_5)]
)
def test_a_kernel_that_reads_what_its_hash_leaves_out_is_not_stored(
    tmp_path: Path, kernel: str, expression: str, named: str
) -> None:
    module = load(tmp_path / "kernels.py", HEAD + kernel.format(expression))
    reason = identify(module.k, []).unstored
    assert reason is not None
    assert named in reason


def test_a_jit_function_that_reads_a_docstring_is_not_stored(tmp_path: Path) -> None:
    kernel = "@triton.jit\ndef k(x):\n    tl.store(x, len(helper.__doc__))\n"
    reason = identify(load(tmp_path / "kernels.py", HEAD + kernel).k, []).unstored
    assert reason is not None
    assert "__doc__" in reason


@pytest.mark.parametrize(
    "expression", ["len(python_helper.__name__)", "len(type(Plan()).__name__)"]
)
def test_names_are_part_of_the_hash_and_may_be_read(tmp_path: Path, expression: str) -> None:
    module = load(tmp_path / "kernels.py", HEAD + HEURISTIC.format(expression))
    assert identify(module.k, []).unstored is None


def test_the_attributes_that_a_pattern_matches_by_position_count(tmp_path: Path) -> None:
    source = """
class Tile:
    __match_args__ = ("@@",)
    low, high = 64, 128
TILE = Tile()
def block(args):
    match TILE:
        case Tile(size):
            return size
@triton.heuristics({"B": block})
@triton.jit
def k(x, B: tl.constexpr):
    tl.store(x, B)
"""
    hashes = {
        identify(load(tmp_path / f"{name}.py", HEAD + source.replace("@@", name)).k, []).source
        for name in ("low", "high")
    }
    assert len(hashes) == 2
