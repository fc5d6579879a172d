"""Changes of a kernel's code by what lies beside its text, each of which changes its code."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any, NamedTuple

from support.identity_check import in_fork, launch, prepare_process
from support.identity_corpus import CorpusKernel

__all__ = ["CHANGES", "Change", "check_changes"]


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
import functools, os, types
from pathlib import Path
import triton
import triton.language as tl
from triton.language import core
from triton.language.extra import libdevice
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
_ACTED = """
@triton.jit
def act(v):
    return v * size()
"""


def _heuristic(source: str, **marks: str) -> Change:
    return Change(_HEAD + textwrap.dedent(source) + _COMPUTED, **marks)


def _reads(expression: str, source: str = "", **marks: str) -> Change:
    return _heuristic(f"{textwrap.dedent(source)}\ndef block(args):\n    {expression}\n", **marks)


def _function(source: str, **marks: str) -> Change:
    return Change(_HEAD + textwrap.dedent(source) + _PLAIN, **marks)


def _constexpr(expression: str, source: str = "", **marks: str) -> Change:
    head = f"{textwrap.dedent(source)}\n@triton.constexpr_function\ndef size():\n    {expression}\n"
    return _function(head + _ACTED, **marks)


_PATCHED = """
@core.builtin
def patched(self, other, _semantic=None):
    return _semantic.add(self, self, True) if @@ > 2 else _semantic.sub(self, self, True)
"""

CHANGES: dict[str, Change] = {
    "an imported function of Triton's": _function(
        "from triton.language import @@ as act\n", before="exp", after="sin"
    ),
    "a function of another of its modules": _function(
        "act = @@\n", before="tl.exp", after="libdevice.erf"
    ),
    "a callable object": _heuristic("""
        class Scaled:
            def __init__(self, fn):
                self.fn = fn
            def __call__(self, args):
                return self.fn(args) * @@
        @Scaled
        def block(args):
            return 3
        """),
    "what a heuristic of the config multiplies by": _reads(
        "return args['B'] // 32 * SIZE", "SIZE = @@"
    ),
    "what a heuristic of the config and of an argument does": _reads(
        "return args['B'] // 32 + tile(args['n'] > 5)", "def tile(n):\n    return n * @@"
    ),
    "a file that a heuristic of the config reads": _reads(
        "return args['B'] // 32 * int(FILE.read_text())", "FILE.write_text('@@')"
    ),
    "an environment variable": _reads(
        "return int(os.getenv('TILE_SIZE'))", "os.environ['TILE_SIZE'] = '@@'"
    ),
    "a file": _reads("return int(FILE.read_text())", "FILE.write_text('@@')"),
    "a memo": _reads("return _memo.setdefault('size', 7)", "_memo = {'size': @@}"),
    "a line's number": _reads(
        "return block.__code__.co_firstlineno - 15", "@@", before="", after="\n\n"
    ),
    "the order of heuristics": Change(_HEAD + """
first = lambda args: 64 if args.get("C") else 8
second = lambda args: 16 if args.get("B2") else 4
@triton.heuristics({@@})
@triton.jit
def k(x, y, n, B: tl.constexpr, B2: tl.constexpr, C: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(y + at, tl.load(x + at) * B2 + C)
""", before='"B2": first, "C": second', after='"C": second, "B2": first'),
    "what wraps a constexpr function": _function("""
        def scaled(function):
            @functools.wraps(function)
            def wrapper():
                return function() * @@
            return wrapper
        @triton.constexpr_function
        @scaled
        def size():
            return 3
        """ + textwrap.indent(_ACTED, " " * 8)),
    "a file that a constexpr function reads": _constexpr(
        "return int(next(open(NAME)))", "FILE.write_text('@@')\nNAME = str(FILE)"
    ),
    "a table that a constexpr function reads": _constexpr(
        "return TABLE['a'][0]", "TABLE = {'a': [@@]}"
    ),
    "a patched method of Triton's tensors": _function(
        _PATCHED + "tl.tensor.__mul__ = patched\n\n@triton.jit\ndef act(v):\n    return v * 7.0\n"
    ),
    "a helper of a builtin": _function("""
        def helper(v, semantic):
            return semantic.mul(v, v, True) if @@ > 2 else semantic.add(v, v, True)
        @core.builtin
        def act(v, _semantic=None):
            return helper(v, _semantic)
        """),
    "an attribute of a module": _function("""
        settings = types.ModuleType("tile_settings")
        settings.inner = types.SimpleNamespace(SIZE=tl.constexpr(@@))
        settings.SIZE = settings.inner.SIZE
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
    "inline": _function(
        "@triton.jit(noinline=@@)\ndef act(v):\n    return v * 3.0\n",
        before="False", after="True",
    ),
}  # fmt: skip
"""Changes by what they are."""


def check_changes(folder: Path, target: str) -> dict[str, str]:
    """Return what became of each change.

    It is `tuned`, or `noticed` by the second launch; `unstored` if the first one left no record;
    `wrong` if it ran with the record of other code; `refused` or `equal code` if it says nothing.
    Each one has a process of its own, forked from this one.

    Args:
        folder: where modules and stores are kept.
        target: what to compile for.
    """
    import torch  # noqa: F401  # these once, before the forks

    from dejavu_cache import cached_autotune, open_store  # noqa: F401

    prepare_process(folder, target)
    found = {}
    for number, (name, change) in enumerate(CHANGES.items()):
        for n, how in ((1001, ""), (1008, ", launched with another alignment")):
            place = folder / f"{number} {n}"
            found[name + how] = in_fork(_check_change, place, change, n) or "refused"
    return found


def _check_change(folder: Path, change: Change, n: int = 1001) -> str:
    store = folder / "store"
    before = _launch(folder / "before" / "kernels.py", change, change.before, store)
    if not store.exists():
        return "unstored"
    after = _launch(folder / "after" / "kernels.py", change, change.after, store, n)
    same = before
    if n != 1001:
        same = _launch(folder / "same" / "kernels.py", change, change.before, folder / "other", n)
    if same.code == after.code:
        return "equal code"
    if after.benchmarked:
        return "tuned"
    again = _launch(folder / "again" / "kernels.py", change, change.after, store, n)
    return "noticed" if again.benchmarked else "wrong"


def _launch(path: Path, change: Change, value: str, store: Path, n: int = 1001) -> Any:
    kernel = CorpusKernel(change.source.replace("@@", value), {"B": 64}, n)
    return launch(path, kernel, store)
