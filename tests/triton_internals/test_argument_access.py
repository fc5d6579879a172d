"""A kernel's code tells which arguments it reads and which it writes, compiled and interpreted."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from support.processes import fork_program

from dejavu_cache.triton_internals.argument_access import watch_interpreter
from dejavu_cache.tuning.expected_results import spans_of_arguments


@pytest.fixture(scope="module")
def accesses_by_kernel() -> dict[str, list[Any]]:
    done = fork_program("tell_accesses.py", TRITON_INTERPRET="0")
    found: dict[str, list[Any]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("kernel", "expected"),
    {
        "copy": ["x", "o", False],
        "walk": ["o x", "o x", False],
        "choose": ["x", "o", False],
        "count": ["o", "o", False],
        "lock": ["o", "o x", False],
        "tuples": ["xs[0]", "xs[1]", False],
        "descriptors": ["x", "o", False],
        "behind_pointers": ["o x", "", True],
        "called": None,
        "nothing": ["", "", False],
    }.items(),
)
def test_compiled_code_tells(
    kernel: str, expected: list[Any] | None, accesses_by_kernel: dict[str, list[Any]]
) -> None:
    assert accesses_by_kernel[kernel] == expected


def interpret(kernel: Any, **arguments: Any) -> tuple[set[str], set[str], bool]:
    with watch_interpreter(spans_of_arguments(arguments)) as seen:
        kernel[(2,)](**arguments)
    ((read, written, elsewhere),) = seen
    return {*read}, {*written}, elsewhere


def test_the_interpreter_shows_what_a_launch_does() -> None:
    @triton.jit  # type: ignore[untyped-decorator]
    def copy(x, o, n, B: tl.constexpr):  # type: ignore[no-untyped-def]
        at = tl.program_id(0) * B + tl.arange(0, B)
        tl.store(o + at, tl.load(x + at, mask=at < n), mask=at < n)

    x, o = torch.ones(32), torch.zeros(32)
    assert interpret(copy, x=x, o=o, n=32, B=16) == ({"x"}, {"o"}, False)
    assert interpret(copy, x=x, o=o, n=0, B=16) == (set(), set(), False)
    assert interpret(copy, x=x, o=x, n=32, B=16) == ({"x", "o"}, {"x", "o"}, False)

    @triton.jit
    def add(o, table):  # type: ignore[no-untyped-def]
        tl.atomic_add(o, 1)
        tl.store(tl.load(table).to(tl.pointer_type(tl.float32)), 1.0)

    hidden = torch.zeros(1)
    table = torch.tensor([hidden.data_ptr()])
    found = interpret(add, o=torch.zeros(1, dtype=torch.int32), table=table)
    assert found == ({"o", "table"}, {"o"}, True)
    assert bool(hidden)
