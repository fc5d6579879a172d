"""Triton's asynchronous compilation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from .environment import is_interpreting

__all__ = ["async_compile_mode", "await_kernel", "forget_failed", "load_binary"]


def async_compile_mode() -> Callable[[Executor], AbstractContextManager[None]] | None:
    """Return a context manager in which `JITFunction.run` compiles in an executor.

    Within it, `run` returns a future.

    Returns:
        None under the interpreter, and where such a context is active already.
    """
    if is_interpreting():
        return None
    from .versions import async_compile as module

    if module.active_mode.get() is not None:
        return None

    @contextmanager
    def mode(executor: Executor) -> Iterator[None]:
        # Triton's own context waits at its end for all that it began; the tuner measures meanwhile.
        token = module.active_mode.set(module.AsyncCompileMode(executor))
        try:
            yield
        finally:
            module.active_mode.reset(token)

    return mode


def await_kernel(kernel: Any) -> Any:
    """Wait for a kernel's compilation, and return the compiled kernel.

    Args:
        kernel: what `JITFunction.run` returned: a future, a `CompiledKernel`, or None.

    Raises:
        Exception: what Triton raises where the kernel cannot be compiled.
    """
    return kernel.result() if hasattr(kernel, "result") else kernel


def load_binary(kernel: Any) -> None:
    """Wait for a kernel's compilation and load its binary onto the device.

    Triton's loader checks shared memory, tensor memory and threads (which registers limit).

    Args:
        kernel: what `JITFunction.run` returned, as `await_kernel` takes it.

    Raises:
        Exception: what Triton raises where the kernel cannot be compiled or loaded.
    """
    compiled = await_kernel(kernel)
    if hasattr(compiled, "_init_handles"):
        compiled._init_handles()


def forget_failed(function: Any) -> None:
    """Remove compilations that failed or were cancelled from a function's cache in memory.

    Triton keeps them, and raises their error at every later launch.

    Args:
        function: a `JITFunction`, or None.
    """
    for kernels, *_ in getattr(function, "device_caches", {}).values():
        for key, kernel in kernels.copy().items():  # in one step, beside other threads
            future = getattr(kernel, "future", None)
            if future is not None and future.done() and _has_failed(future):
                kernels.pop(key, None)


def _has_failed(future: Future[Any]) -> bool:
    return future.cancelled() or future.exception() is not None
