"""What stands between an autotuner and its jit function takes part in the kernel's code."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.kernels import load

from dejavu_cache.triton_internals.identity import identify

HEAD = """
import time
import triton, triton.language as tl
from triton.runtime.autotuner import Heuristics
from triton.runtime.jit import KernelInterface

class Plain:
    def __init__(self, fn, size):
        self.fn, self.arg_names, self.size = fn, fn.arg_names, size
    def run(self, *args, **kwargs):
        return self.fn.run(*args, B=self.size, **kwargs)

class Derived(KernelInterface):
    def __init__(self, fn, size):
        self.fn, self.arg_names, self.size = fn, fn.arg_names, size
    def run(self, *args, **kwargs):
        return self.fn.run(*args, B=self.size, **kwargs)

class OwnHeuristics(Heuristics):
    def __init__(self, fn, size):
        super().__init__(fn, fn.arg_names, {})
        self.size = size
    def run(self, *args, **kwargs):
        return self.fn.run(*args, B=self.size, **kwargs)

def with_run(fn, size):
    run = fn.run
    def wrapped(*args, **kwargs):
        return run(*args, B=size, **kwargs)
    fn.run = wrapped
    return fn

class Timed(Plain):
    def run(self, *args, **kwargs):
        return self.fn.run(*args, B=int(time.time()) % 2, **kwargs)

@triton.jit
def jitted(x, B: tl.constexpr):
    tl.store(x, B)
"""
LAYERS = ["Plain", "Derived", "OwnHeuristics", "with_run"]


@pytest.mark.parametrize("layer", LAYERS)
def test_the_state_of_a_layer_counts(tmp_path: Path, layer: str) -> None:
    identities = [
        identify(load(tmp_path / "kernels.py", f"{HEAD}k = {layer}(jitted, {size})\n").k, [])
        for size in (64, 64, 128)
    ]
    assert [identity.unstored for identity in identities] == [None] * 3
    assert identities[0] == identities[1] != identities[2]


def test_the_code_of_a_layer_counts(tmp_path: Path) -> None:
    source = f"{HEAD}k = Plain(jitted, 64)\n"
    edited = source.replace("B=self.size,", "B=self.size * 2,")
    hashes = {
        identify(load(tmp_path / "kernels.py", text).k, []).source for text in (source, edited)
    }
    assert len(hashes) == 2


def test_a_layer_that_may_read_anything_is_not_stored(tmp_path: Path) -> None:
    reason = identify(load(tmp_path / "kernels.py", f"{HEAD}k = Timed(jitted, 1)\n").k, []).unstored
    assert reason is not None
    assert "time.time" in reason


def test_heuristics_that_read_each_other_count_by_their_order(tmp_path: Path) -> None:
    kernel = """
first = lambda args: 64
second = lambda args: args["B"] * 2
@triton.heuristics({@@})
@triton.jit
def k(x, B: tl.constexpr, C: tl.constexpr):
    tl.store(x, B + C)
"""
    orders = ('"B": first, "C": second', '"C": second, "B": first')
    hashes = {
        identify(load(tmp_path / "kernels.py", HEAD + kernel.replace("@@", order)).k, []).source
        for order in orders
    }
    assert len(hashes) == 2


PASSING_ON = {
    "a method": """
class Spy(Plain):
    def run(self, *args, **kwargs):
        global latest
        latest = kwargs["n"], "m" in kwargs, kwargs.get("o")
        self.launches = time.time()
        print(args[0], latest)
        return self.fn.run(*args, **kwargs)
k = Spy(jitted, 1)
""",
    "with Triton's parameters": """
class Spy(Plain):
    def run(self, *args, grid, warmup, **kwargs):
        try:
            return self.fn.run(*args, grid=grid, warmup=warmup, **kwargs)
        finally:
            print(time.time())
k = Spy(jitted, 1)
""",
    "a wrapped run": """
def watch(fn):
    run, launches = fn.run, []
    def wrapped(*args, **kwargs):
        launches.append(time.time())
        return run(*args, **kwargs)
    fn.run = wrapped
    return fn
k = watch(jitted)
""",
}


@pytest.mark.parametrize("source", PASSING_ON.values(), ids=PASSING_ON)
def test_a_layer_that_passes_its_arguments_on_changes_nothing(tmp_path: Path, source: str) -> None:
    plain = identify(load(tmp_path / "kernels.py", f"{HEAD}k = jitted\n").k, [])
    watched = identify(load(tmp_path / "kernels.py", HEAD + source).k, [])
    assert watched == plain
    assert watched.unstored is None


@pytest.mark.parametrize(
    "body",
    [
        "kwargs['B'] = int(time.time()); return self.fn.run(*args, **kwargs)",
        "kwargs.update(B=int(time.time())); return self.fn.run(*args, **kwargs)",
        "args = (*args, int(time.time())); return self.fn.run(*args, **kwargs)",
        "return self.fn.run(*args, B=int(time.time()), **kwargs)",
        "return self.fn.run(*args, int(time.time()), **kwargs)",
        "self.swap(time.time()); return self.fn.run(*args, **kwargs)",
        "self.fn = CHOICES[int(time.time()) % 2]; return self.fn.run(*args, **kwargs)",
        "setattr(self, 'fn', time.time()); return self.fn.run(*args, **kwargs)",
        "own = self; own.swap(time.time()); return self.fn.run(*args, **kwargs)",
        "change(kwargs, time.time()); return self.fn.run(*args, **kwargs)",
        "run = time.time; return self.fn.run(*args, **kwargs)",
        "return other.run(*args, **kwargs) if time.time() else self.fn.run(*args, **kwargs)",
        "return self.fn.run(*args, **kwargs) if time.time() else self.fn.run(*args, B=2, **kwargs)",
        "for kwargs in (time.time(),): pass\n        return self.fn.run(*args, **kwargs)",
        "import time as kwargs; time.time()\n        return self.fn.run(*args, **kwargs)",
        "return (lambda *args, **kwargs: self.fn.run(*args, **kwargs))(time.time())",
    ],
)
def test_a_layer_that_may_change_its_arguments_is_read(tmp_path: Path, body: str) -> None:
    source = f"""
class Layer(Plain):
    def run(self, *args, **kwargs):
        {body}
k = Layer(jitted, 1)
"""
    names = "CHOICES, change, other = [], len, Plain(jitted, 2)\n"
    reason = identify(load(tmp_path / "kernels.py", HEAD + names + source).k, []).unstored
    assert reason is not None
