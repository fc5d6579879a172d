"""Compile many configs of one launch at once, and find those that cannot run."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

from ..triton_internals.async_compile import (
    async_compile_mode,
    await_kernel,
    forget_failed,
    load_binary,
)
from ..triton_internals.compiler_digest import await_digest
from ..triton_internals.hooks import retry_parsing
from ..triton_internals.triton_objects import find_jit_function
from .config_failures import forget_frames

__all__ = ["Candidate", "compile_ahead", "threads_for"]

MOST_THREADS = 16
"""Most threads that compile.

Each holds the interpreter's lock for about a tenth of its time: more would wait for each other.
"""


class Candidate(NamedTuple):
    """A config on its way to the device.

    Attributes:
        config: the `triton.Config`.
        kernel: what Triton's asynchronous compilation returned, the error that it raised at once,
            or None where the first launch compiles.
    """

    config: Any
    kernel: Any = None

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to wait for."""
        future = getattr(self.kernel, "future", None)
        return future is None or future.done()

    def check(self) -> None:
        """Wait for the compiler and load the binary, as `load_binary` does.

        Raises:
            Exception: what Triton raises where the config cannot run.
        """
        if isinstance(self.kernel, Exception):
            raise self.kernel
        load_binary(self.kernel)

    def finish(self) -> None:
        """Wait for the compiler, after which Triton has the kernel; ignore a failure."""
        try:
            await_kernel(self.kernel)
        except Exception as error:  # kept by the compilation, and raised again
            forget_frames(error)


@contextmanager
def compile_ahead(
    autotuner: Any,
    configs: Sequence[Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    first: Any = None,
) -> Iterator[list[Candidate]]:
    """Compile configs in the background by Triton's own asynchronous compilation.

    Those that take longest begin early: else one of them would run alone at the end. The passes,
    LLVM and ptxas release the interpreter's lock, so threads suffice. Where there is no
    asynchronous compilation (under the interpreter, or within another one), candidates are compiled
    by their first launch. Compilations that have not started when the context ends are cancelled.

    Args:
        autotuner: one whose `nargs` are the launch's.
        configs: `triton.Config`s.
        args: the launch's positional arguments.
        kwargs: the launch's keyword arguments.
        first: the config that is needed before the others.

    Yields:
        The candidates, in order.
    """
    await_digest()
    mode = async_compile_mode()
    if mode is None or not configs:
        yield [Candidate(config) for config in configs]
        return
    retry_parsing()
    pool = ThreadPoolExecutor(threads_for(len(configs)), thread_name_prefix="dejavu-cache compile")
    candidates: list[Candidate] = []
    try:
        with mode(pool):
            longest_first = sorted(configs, key=_tile_of_a_warp, reverse=True)
            for config in sorted(longest_first, key=lambda config: config is not first):
                candidates.append(_submit(autotuner, config, args, kwargs))
        submitted = {id(candidate.config): candidate for candidate in candidates}
        yield [submitted[id(config)] for config in configs]
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        for candidate in candidates:
            candidate.finish()
        forget_failed(find_jit_function(autotuner))


def _tile_of_a_warp(config: Any) -> float:
    """Return the logarithm of the product of a config's numbers per warp.

    The time to compile grows with it. Numbers that are no sizes move a config in the order alone.
    """
    values = [value for value in config.kwargs.values() if type(value) is int and value > 0]
    warps = config.num_warps if type(config.num_warps) is int else 0
    return math.fsum(map(math.log2, values)) - math.log2(max(warps, 1))


def _submit(
    autotuner: Any, config: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Candidate:
    """Bind the arguments as a launch would, its hook included, and compile in the pool."""
    if kwargs.keys() & config.kwargs.keys():  # an error, which the benchmark raises
        return Candidate(config)
    current = {**kwargs, **config.all_kwargs()}
    if config.pre_hook is not None:
        config.pre_hook({**autotuner.nargs, **current})
    try:
        return Candidate(config, autotuner.fn.run(*args, **{**current, "warmup": True}))
    except Exception as error:
        forget_frames(error)
        return Candidate(config, error)


def threads_for(configs: int) -> int:
    """Return the number of threads to compile a number of configs with."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(min(cpus, MOST_THREADS, configs), 1)
