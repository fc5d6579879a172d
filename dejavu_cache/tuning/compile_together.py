"""Compile the kernels of many launches at once, before the first of them is launched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

from ..system.signal_handlers import is_from_signal_handler
from ..triton_internals.async_compile import async_compile_mode, forget_failed
from ..triton_internals.compiler_digest import await_digest
from ..triton_internals.hooks import retry_parsing
from ..triton_internals.triton_objects import find_jit_function
from .compile_ahead import MOST_THREADS, threads_for

__all__ = ["begins_compilation", "compile_together"]

_begun: ContextVar[list[tuple[Any, Any]] | None] = ContextVar("dejavu_cache_begun", default=None)
"""Kernels that are being compiled, each with what Triton returned for it; None outside."""


def compile_together(launches: Iterable[Callable[[], object]]) -> None:
    """Call functions whose launches compile their kernels, several at a time, and run nothing.

    Launches count that ask `begins_compilation`. Nothing happens under the interpreter. What fails
    here is left to the launches that follow, which raise it.

    Args:
        launches: each makes some launches.
    """
    mode = async_compile_mode()
    if mode is None:
        return
    await_digest()
    retry_parsing()
    begun: list[tuple[Any, Any]] = []
    token = _begun.set(begun)
    pool = ThreadPoolExecutor(threads_for(MOST_THREADS), thread_name_prefix="dejavu-cache compile")
    try:
        with mode(pool):
            for launch in launches:
                _attempt(launch)
        for _, compiled in begun:
            _attempt(compiled.result)  # Triton has the kernel from then on
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        _begun.reset(token)
        for function, _ in begun:
            forget_failed(function)


def _attempt(call: Callable[[], object]) -> None:
    """Call a function whose failure is left to the launches that follow."""
    try:
        call()
    except Exception as error:
        if is_from_signal_handler(error):
            raise


def begins_compilation(
    kernel: Any, grid: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> bool:
    """Return whether launches are only compiled now, and begin that for this one.

    Args:
        kernel: of Triton, with an autotuner or without.
        grid: of the launch.
        args: its positional arguments.
        kwargs: its keyword arguments.
    """
    begun = _begun.get()
    if begun is None:
        return False
    compiled = kernel.run(*args, grid=grid, warmup=True, **kwargs)
    if hasattr(compiled, "result"):
        begun.append((find_jit_function(kernel), compiled))
    if callable(grid):  # later launches may read what it notes
        config = getattr(kernel, "best_config", None)
        named = dict(zip(kernel.arg_names, args, strict=False))
        grid({**named, **kwargs, **(config.all_kwargs() if config else {})})
    return True
