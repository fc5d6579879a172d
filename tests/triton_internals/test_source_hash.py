"""The source hash changes with what a kernel computes and with nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.kernels import ADD, load

from dejavu_cache.triton_internals.source_hash import kernel_name, source_hash

KERNEL = ADD.replace("SHIFT =", 'KEYS = ["n"]\n    SHIFT =', 1)


def hash_of(tmp_path: Path, source: str, file: str = "kernels.py") -> str:
    return source_hash(load(tmp_path / file, source).add)


@pytest.mark.parametrize(
    ("what", "old", "new"),
    [
        ("a comment above", "    @cached_autotune", "    # faster now\n    @cached_autotune"),
        ("a comment inside", "        tl.store", "        # write\n        tl.store"),
        ("a docstring", "        at = tl", '        """Adds."""\n        at = tl'),
        ("formatting", "x_ptr, y_ptr, n, BLOCK", "x_ptr,\n            y_ptr, n, BLOCK"),
        ("parentheses", "return x + SHIFT", "return (x + SHIFT)"),
        ("lines above", "    SHIFT", "\n\n\n    UNUSED = 3\n    SHIFT"),
        ("the list of configs", "(16, 32, 64)", "(16, 32, 64, 128)"),
        ("what the decorator is given", 'key=["n"]', "key=KEYS"),
        (
            "a comment in the helper",
            "        return x + SHIFT",
            "        # shifted\n        return x + SHIFT",
        ),
    ],
)
def test_what_does_not_change_the_code_does_not_change_the_hash(
    tmp_path: Path, what: str, old: str, new: str
) -> None:
    assert old in KERNEL
    assert hash_of(tmp_path, KERNEL.replace(old, new, 1)) == hash_of(tmp_path, KERNEL), what


def test_another_file_does_not_change_the_hash(tmp_path: Path) -> None:
    assert hash_of(tmp_path, KERNEL, "elsewhere/renamed.py") == hash_of(tmp_path, KERNEL)


@pytest.mark.parametrize(
    ("what", "old", "new"),
    [
        ("the body", "mask=at < n)), mask=at < n)", "mask=at < n)), mask=at <= n)"),
        ("a helper's body", "return x + SHIFT", "return x - SHIFT"),
        ("a constexpr global that a helper reads", "tl.constexpr(1)", "tl.constexpr(2)"),
        ("a number's type", "tl.constexpr(1)", "tl.constexpr(1.0)"),
        ("an argument", "n, BLOCK", "n: tl.int64, BLOCK"),
    ],
)
def test_code_changes_the_hash(tmp_path: Path, what: str, old: str, new: str) -> None:
    assert old in KERNEL
    assert hash_of(tmp_path, KERNEL.replace(old, new, 1)) != hash_of(tmp_path, KERNEL), what


def test_helpers_are_found_through_modules_and_closures(tmp_path: Path) -> None:
    source = """
        import types
        import triton
        import triton.language as tl
        helpers = types.ModuleType("helpers")

        def make(amount):
            @triton.jit
            def shift(x):
                return x + amount
            helpers.shift = shift

            @triton.jit
            def add(x_ptr):
                tl.store(x_ptr, helpers.shift(tl.load(x_ptr)))
            return add

        add = make(tl.constexpr(1))
    """
    assert hash_of(tmp_path, source) != hash_of(
        tmp_path, source.replace("make(tl.constexpr(1))", "make(tl.constexpr(2))")
    )


def test_functions_that_call_each_other_end(tmp_path: Path) -> None:
    source = """
        import triton
        @triton.jit
        def ping(x):
            return pong(x)
        @triton.jit
        def pong(x):
            return ping(x)
        add = ping
    """
    assert re.fullmatch(r"[0-9a-f]{32}", hash_of(tmp_path, source))


def test_the_hash_does_not_depend_on_the_version_of_python(tmp_path: Path) -> None:
    """Records made by one Python serve another, so the hash of this text is fixed here."""
    source = """
        import triton
        import triton.language as tl
        @triton.jit
        def add(x_ptr, n, BLOCK: tl.constexpr = 16):
            at = tl.arange(0, BLOCK)[None, :]
            tl.store(x_ptr + at, -1.5 if n > 2 else 0, mask=at < n)
    """
    assert hash_of(tmp_path, source) == "53552c2b3e4f7bb6aa0c4dd0ba14a0ea"


def test_a_kernel_goes_by_its_module_and_qualified_name(tmp_path: Path) -> None:
    assert (
        kernel_name(load(tmp_path / "anything.py", KERNEL, name="pkg.ops.kernels").add)
        == "pkg.ops.kernels.add"
    )
