"""What a kernel's code, and what a pruning function, does to the arguments of a launch."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from support.processes import in_own_process
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from dejavu_cache.triton_internals.argument_access import accesses_of_kernel, watch_interpreter
from dejavu_cache.triton_internals.argument_reads import ReadArguments, noting_reads
from dejavu_cache.tuning.expected_results import spans_of_arguments

FLOATS = {"x": "*fp32", "o": "*fp32", "n": "i32"}


@triton.jit
def copy(x, o, n):
    at = tl.arange(0, 16)
    tl.store(o + at, tl.load(x + at, mask=at < n), mask=at < n)


@triton.jit
def walk(x, o, n):
    at = tl.arange(0, 16)
    source, target = x + at, o + at
    for _ in range(n):
        tl.store(target, tl.load(source))
        source += 16
        target += n


@triton.jit
def swap(x, o, n):
    for _ in range(n):
        tl.store(o, tl.load(x))
        x, o = o, x


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


READS_AND_WRITES: dict[Any, tuple[str, str, bool] | None] = {
    copy: ("x", "o", False),
    walk: ("x", "o", False),
    swap: ("o x", "o x", False),
    choose: ("x", "o", False),
    count: ("o", "o", False),
    lock: ("o", "o x", False),
    tuples: ("xs[0]", "xs[1]", False),
    descriptors: ("x", "o", False),
    behind_pointers: ("o x", "", True),
    called: None,
    nothing: ("", "", False),
}


@in_own_process(TRITON_INTERPRET="0")
def test_compiled_code_tells() -> None:
    for kernel, expected in READS_AND_WRITES.items():
        source = ASTSource(kernel, SIGNATURES.get(kernel, FLOATS), {})
        accesses = accesses_of_kernel(triton.compile(source, target=GPUTarget("cuda", 90, 32)))
        told = accesses and (*(" ".join(sorted(names)) for names in accesses[:2]), accesses[2])
        assert told == expected, kernel


def interpret(kernel: Any, **arguments: Any) -> tuple[set[str], set[str], bool]:
    with watch_interpreter(spans_of_arguments(arguments)) as seen:
        kernel[(2,)](**arguments)
    ((read, written, elsewhere),) = seen
    return {*read}, {*written}, elsewhere


def test_the_interpreter_shows_what_a_launch_does() -> None:
    x, o = torch.ones(16), torch.zeros(16)
    assert interpret(copy, x=x, o=o, n=16) == ({"x"}, {"o"}, False)
    assert interpret(copy, x=x, o=o, n=0) == (set(), set(), False)
    assert interpret(copy, x=x, o=x, n=16) == ({"x", "o"}, {"x", "o"}, False)

    @triton.jit
    def add(o, table):
        tl.atomic_add(o, 1)
        tl.store(tl.load(table).to(tl.pointer_type(tl.float32)), 1.0)

    hidden = torch.zeros(1)
    table = torch.tensor([hidden.data_ptr()])
    found = interpret(add, o=torch.zeros(1, dtype=torch.int32), table=table)
    assert found == ({"o", "table"}, {"o"}, True)
    assert bool(hidden)


def of_a_match(named: Any) -> Any:
    match named:
        case {"n": n}:
            return n


WAYS: dict[str, Callable[[Any], object]] = {
    "an item": lambda named: named["n"],
    "get": lambda named: named.get("n"),
    "get of what is not there": lambda named: named.get("n", 1),
    "pop": lambda named: named.pop("n"),
    "items": lambda named: list(named.items()),
    "values": lambda named: list(named.values()),
    "a copy": lambda named: named.copy(),
    "a dictionary": dict,
    "keywords": lambda named: (lambda **rest: rest)(**named),
    "a display": lambda named: {**named},
    "a union": lambda named: named | {},
    "a union to the right": lambda named: {} | named,
    "equality": lambda named: named == {"n": 1},
    "a text": repr,
    "JSON": json.dumps,
    "eval": lambda named: eval("n > 0", named),
    "a match": of_a_match,
    "a format": lambda named: "{n}".format_map(named),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_read_is_noted(way: str) -> None:
    read: set[str] = set()
    named = ReadArguments({"n": 5, "m": 6}, read)
    assert isinstance(named, dict)
    WAYS[way](named)
    assert "n" in read


def test_names_alone_are_no_reads_and_writes_reach_the_launch() -> None:
    read: set[str] = set()
    arguments = {"n": 5}
    named = ReadArguments(arguments, read)
    assert ("n" in named, list(named), len(named)) == (True, ["n"], 1)
    assert read == set()
    named["m"] = 6
    named |= {"k": 7}
    named.update(j=8)
    del named["n"]
    assert arguments == {"m": 6, "k": 7, "j": 8}


def by_name(configs: Any, named: Any, n: int, **rest: Any) -> int:
    return n


def by_rest(configs: Any, named: Any, n: int, **rest: Any) -> Any:
    return rest.get("seed")


def by_locals(configs: Any, named: Any, n: int, **rest: Any) -> Any:
    return locals()["rest"]


@pytest.mark.parametrize(
    ("function", "noted"),
    [
        (by_name, {"n"}),
        *((function, {"n", "seed"}) for function in (by_rest, by_locals, partial(by_name))),
    ],
)
def test_what_a_function_may_read_of_its_keywords_counts(
    function: Callable[..., Any], noted: set[str]
) -> None:
    read: set[str] = set()
    noting_reads(function, read)([], {}, n=1, seed=2)
    assert read == noted
