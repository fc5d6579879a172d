"""Changes of a kernel's code by what lies beside its text, each of which changes its code."""

import textwrap
from pathlib import Path
from typing import Any, NamedTuple

from support.identity_check import copy_store, in_fork, launch, prepare_process
from support.identity_corpus import CorpusKernel


class Change(NamedTuple):
    """A module with a kernel `k`, in which `@@` stands for what changes.

    Attributes:
        source: the text of the module.
        before: what `@@` is first.
        after: what it is then.
    """

    source: str
    before: str = "2"
    after: str = "5"


_HEAD = """
from pathlib import Path
import types
import triton
import triton.language as tl
from triton.language import core
FILE = Path(__file__).with_name("size")
"""
_COMPUTED = """
@triton.heuristics({"H": block})
@triton.jit
def k(x, y, n, B: tl.constexpr, H: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(y + at, tl.load(x + at, mask=at < n) * H)
"""
_PLAIN = """
@triton.jit
def k(x, y, n, B: tl.constexpr):
    tl.store(y + tl.arange(0, B), act(tl.load(x + n)))
"""


def _heuristic(source: str) -> Change:
    return Change(_HEAD + textwrap.dedent(source) + _COMPUTED)


def _function(source: str, **marks: str) -> Change:
    return Change(_HEAD + textwrap.dedent(source) + _PLAIN, **marks)


CHANGES: dict[str, Change] = {
    "an imported function of Triton's": _function(
        "from triton.language import @@ as act\n", before="exp", after="sin"
    ),
    "a helper of a heuristic of the config and of an argument": _heuristic("""
        def tile(n):
            return n * @@
        def block(args):
            return args["B"] // 32 + tile(args["n"] > 5)
        """),
    "a file that a heuristic reads": _heuristic("""
        FILE.write_text("@@")
        def block(args):
            return int(FILE.read_text())
        """),
    "the order of heuristics": Change(_HEAD + """
first = lambda args: 64 if args.get("C") else 8
second = lambda args: 16 if args.get("B2") else 4
@triton.heuristics({@@})
@triton.jit
def k(x, y, n, B: tl.constexpr, B2: tl.constexpr, C: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(y + at, tl.load(x + at) * B2 + C)
""", before='"B2": first, "C": second', after='"C": second, "B2": first'),
    "a file that a constexpr function reads": _function("""
        FILE.write_text("@@")
        NAME = str(FILE)
        @triton.constexpr_function
        def size():
            return int(next(open(NAME)))
        @triton.jit
        def act(v):
            return v * size()
        """),
    "a value that a constexpr function reads, beside an enumeration": Change(_HEAD + """
import enum
SIZE = {"of": @@}
@triton.constexpr_function
def size():
    return SIZE["of"]
@triton.jit
def k(x, y, n, B: tl.constexpr, kind: tl.constexpr = enum.Enum("Kind", "PLAIN").PLAIN):
    tl.store(y + tl.arange(0, B), tl.load(x + n) * size())
"""),
    "a patched method of Triton's tensors": _function("""
        @core.builtin
        def patched(self, other, _semantic=None):
            return _semantic.add(self, self, True) if @@ > 2 else _semantic.sub(self, self, True)
        tl.tensor.__mul__ = patched
        @triton.jit
        def act(v):
            return v * 7.0
        """),
    "an attribute of a module": _function("""
        settings = types.ModuleType("tile_settings")
        settings.SIZE = tl.constexpr(@@)
        @triton.jit
        def act(v):
            return v * settings.SIZE
        """),
    "a default that is set later": _function("""
        @triton.jit
        def act(v, by=3):
            return v * by
        act.fn.__defaults__ = (@@,)
        """),
    "a closure of a closure": _function("""
        def make(by):
            @triton.jit
            def inner(v):
                return v * by
            def outer(other):
                @triton.jit
                def act(v):
                    return inner(v) + other
                return act
            return outer
        act = make(tl.constexpr(@@))(tl.constexpr(1.5))
        """),
    "a config's hook that shapes a descriptor": Change(_HEAD + """
from triton.tools.tensor_descriptor import TensorDescriptor
wrap = lambda x: TensorDescriptor(x, [64, 64], [64, 1], [16, 16])
def hook(named):
    named["x"].block_shape = [16, @@]
@triton.jit
def k(x, y, n, B: tl.constexpr):
    tl.store(y, tl.sum(x.load([0, 0])))
""", before="32", after="64"),
    "inline": _function(
        "@triton.jit(noinline=@@)\ndef act(v):\n    return v * 3.0\n",
        before="False", after="True",
    ),
}  # fmt: skip
"""Changes by what they are."""


def check_changes(folder: Path, target: str) -> dict[str, str]:
    """Return what became of each change, launched as before and with another alignment.

    It is `tuned`, or `noticed` by the second launch; `unstored` if the first one left no record;
    `wrong` if it ran with the record of other code; `refused` or `equal code` if it says nothing.
    Each one has a process of its own, forked from this one.
    """
    import torch  # noqa: F401  # these once, before the forks

    from dejavu_cache import cached_autotune, open_store  # noqa: F401

    prepare_process(folder, target)
    found = {}
    for number, (name, change) in enumerate(CHANGES.items()):
        outcomes = in_fork(_check_change, folder / str(number), change) or ["refused"] * 2
        found[name], found[f"{name}, launched with another alignment"] = outcomes
    return found


def _check_change(folder: Path, change: Change) -> list[str]:
    store = folder / "store"
    before = _launch(folder / "before" / "kernels.py", change, change.before, store)
    if not store.exists():
        return ["unstored"] * 2
    same = _launch(folder / "same" / "kernels.py", change, change.before, folder / "other", 1008)
    codes = {1001: before.code, 1008: same.code}
    return [_outcome(folder / str(n), change, n, store, code) for n, code in codes.items()]


def _outcome(folder: Path, change: Change, n: int, store: Path, code: str) -> str:
    copy_store(store, folder / "store")
    after = _launch(folder / "after" / "kernels.py", change, change.after, folder / "store", n)
    if code == after.code:
        return "equal code"
    if after.benchmarked:
        return "tuned"
    again = _launch(folder / "again" / "kernels.py", change, change.after, folder / "store", n)
    return "noticed" if again.benchmarked else "wrong"


def _launch(path: Path, change: Change, value: str, store: Path, n: int = 1001) -> Any:
    kernel = CorpusKernel(change.source.replace("@@", value), {"B": 64}, n)
    return launch(path, kernel, store)
