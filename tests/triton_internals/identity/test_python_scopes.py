"""A name that an inner scope binds hides no global, and no function of Python's, outside of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import triton
from support.heuristic_identity import HEAD, identity_of
from support.kernels import load

from dejavu_cache.triton_internals.identity import KernelIdentity, identify

INNER_SCOPES = {
    "a class's attribute": "class Inner:\n        SIZE = 3\n    return SIZE",
    "a class's method": "class Inner:\n        def SIZE(self): return 3\n    return SIZE",
    "a class that reads it first": """class Inner:
        size = SIZE
        SIZE = 3
    return Inner.size""",
    "a method beside the attribute": """class Inner:
        SIZE = 3
        def size(self): return SIZE
    return Inner().size()""",
    "an import": "def inner():\n        import math as SIZE\n    return SIZE",
    "a coroutine": "async def inner():\n        SIZE = 3\n    return SIZE",
}


@pytest.mark.parametrize("body", INNER_SCOPES.values(), ids=INNER_SCOPES)
def test_a_global_counts_where_only_an_inner_scope_binds_its_name(
    tmp_path: Path, body: str
) -> None:
    def identity(size: int) -> KernelIdentity:
        return identity_of(tmp_path, f"SIZE = {size}\ndef block(args):\n    {body}\n")

    one, other = identity(64), identity(128)
    assert one.unstored or one != other


@pytest.mark.skipif(not hasattr(triton, "constexpr_function"), reason="needs Triton 3.5")
def test_a_global_of_a_constexpr_function_counts_where_a_class_binds_its_name(
    tmp_path: Path,
) -> None:
    source = """
@triton.constexpr_function
def block(n):
    class Inner:
        SIZE = 3
    return SIZE
@triton.jit
def k(x, B: tl.constexpr):
    tl.store(x, block(B))
"""
    hashes = {
        identify(load(tmp_path / "kernel.py", f"{HEAD}SIZE = {size}\n{source}").k, []).source
        for size in (64, 128)
    }
    assert len(hashes) == 2


@pytest.mark.parametrize(
    "body",
    [
        "inner = lambda eval: 1; return eval('SIZE')",
        "inner = lambda text, eval=eval: eval(text); return inner('SIZE')",
        "class Inner:\n        globals = 1\n    return globals()['SIZE']",
    ],
)
def test_a_function_of_pythons_is_refused_where_only_an_inner_scope_binds_its_name(
    tmp_path: Path, body: str
) -> None:
    reason = identity_of(tmp_path, f"SIZE = 64\ndef block(args):\n    {body}\n").unstored
    assert reason is not None
    assert "which may read anything" in reason


@pytest.mark.parametrize(
    "body",
    [
        "hash = args['n']; return hash * 2",
        "def id(n): return n * 2\n    return id(args['n'])",
        "class Inner:\n        SIZE = 3\n        sizes = (SIZE, 4)\n    return Inner.sizes[0]",
        "import math\n    return math.ceil(args['n'])",
    ],
)
def test_names_of_the_heuristics_own_are_stored(tmp_path: Path, body: str) -> None:
    assert identity_of(tmp_path, f"def block(args):\n    {body}\n").unstored is None


def test_a_function_that_took_the_place_of_pythons_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.ascii", lambda value: 64)
    reason = identity_of(tmp_path, "def block(args):\n    return ascii(args['n'])\n").unstored
    assert reason is not None
    assert "ascii" in reason
