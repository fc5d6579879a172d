"""Kernels as source text, importing them, and launching them."""

import importlib.util
import linecache
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

ADD = """
    import triton
    import triton.language as tl
    from dejavu_cache import Pow2, cached_autotune

    SHIFT = tl.constexpr(1)

    @triton.jit
    def shift(x):
        return x + SHIFT

    CONFIGS = [triton.Config({"BLOCK": block}, num_warps=4) for block in (16, 32, 64)]

    @cached_autotune(configs=CONFIGS, key=["n"])
    @triton.jit
    def add(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y_ptr + at, shift(tl.load(x_ptr + at, mask=at < n)), mask=at < n)
"""
"""A module with one kernel that calls a helper, which reads a constexpr global."""

AUTOTUNED_ADD = """
    import triton
    import triton.language as tl

    @triton.autotune(configs=[triton.Config({"BLOCK": block}) for block in (16, 32)], key=["n"])
    @triton.jit
    def add(x, y, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)
"""
"""A module of a library that knows only `triton.autotune`."""


def load(path: Path, source: str = ADD, name: str = "kernels") -> ModuleType:
    """Write a module of kernels and import it."""
    write_source(path, source)
    return load_file(path, name)


def write_source(path: Path, source: str) -> None:
    """Write an indented text to a module's file, and make its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(source))


def load_file(path: Path, name: str = "kernels") -> ModuleType:
    """Import a file anew under a module's name."""
    linecache.checkcache(str(path))  # else it answers with the text of an earlier file of this path
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def launch(kernel: Any, n: int = 100, dtype: str = "float32", **kwargs: Any) -> Any:
    """Run an `add` kernel on outputs filled with a wrong value, and check what it wrote."""
    import torch
    import triton

    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.arange(n, device=device).to(getattr(torch, dtype))
    y = torch.full_like(x, float("nan"))
    kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, n, **kwargs)
    assert torch.equal(y, x + 1)
    return y
