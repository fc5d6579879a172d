"""Make the cases of a sweep from operations of a library that calls `triton.autotune`.

An operation is run, and each launch of an autotuned kernel in it becomes a case. To measure the
case, the operation is run again up to that launch, whose arguments are taken. Until then, kernels
run their default configs, and nothing is benchmarked.

Libraries leave batch and length out of their keys, so that inputs of several sizes have one
scenario. A sweep tunes it over all of them; the library's autotuner keeps what won on the first.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from triton.runtime.errors import OutOfResources

from dejavu_cache import install
from dejavu_cache.runtime.autotuner import CachedAutotuner
from dejavu_cache.runtime.request import Request
from dejavu_cache.sweep.suite import Case, read_names

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

_logger = logging.getLogger("dejavu_cache")


def randn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Any:
    """Return normally distributed numbers, of which a gradient is wanted."""
    return torch.randn(*shape, device=DEVICE, dtype=dtype).requires_grad_()


@dataclass(frozen=True)
class Operation:
    """A function of a library, and the sizes of its inputs.

    Attributes:
        function: makes inputs of these sizes, and returns the library's result for them. It imports
            the library, so that `install()` can come first.
        sizes: the function's arguments.
    """

    function: Callable[..., Any]
    sizes: tuple[int, ...]

    def __str__(self) -> str:
        """Return the operation's name in a sweep."""
        return f"{self.function.__name__} {' x '.join(map(str, self.sizes))}"

    def run(self) -> None:
        """Run the function on inputs from a fixed seed, and backward if its result has gradients.

        A library may refuse a GPU or a Triton half-way: what it has launched before counts.
        """
        torch.manual_seed(0)
        try:
            result = self.function(*self.sizes)
            if result.requires_grad:
                result.backward(torch.randn_like(result))
        except RuntimeError as error:
            _logger.warning("%s ends early: %s", self, error)


def operations_of(
    functions: Iterable[Callable[..., Any]], inputs: Sequence[tuple[int, ...]], only: str = ""
) -> list[Operation]:
    """Return the operations of some functions for each of the inputs' sizes.

    Args:
        functions: the functions.
        inputs: their arguments.
        only: names of functions, separated by +; empty for all.
    """
    named = {function.__name__: function for function in functions}
    names = read_names("only", only, named)
    return [Operation(named[name], sizes) for name in names for sizes in inputs]


class _LaunchReached(BaseException):
    """The launch whose arguments are wanted."""


@contextmanager
def choose_configs(choose: Callable[[CachedAutotuner, Request], Any]) -> Iterator[None]:
    """Launch each kernel that has several configs with the one that a function chooses.

    If it does not fit the GPU, the first declared one that does runs.
    """
    original, original_getitem = CachedAutotuner.run, CachedAutotuner.__getitem__

    def run(kernel: CachedAutotuner, *args: Any, **kwargs: Any) -> Any:
        if len(kernel.configs) < 2 or kwargs.get("warmup"):
            return original(kernel, *args, **kwargs)
        request = kernel.request(*args, **kwargs)
        # The first configs of some kernels need more shared memory than there is.
        for config in (choose(kernel, request), *request.declared.values()):
            kernel.best_config = config
            with suppress(OutOfResources):
                return launch(request, config)
        return original(kernel, *args, **kwargs)

    CachedAutotuner.run = run
    CachedAutotuner.__getitem__ = lambda kernel, grid: partial(kernel.run, grid=grid, warmup=False)
    try:
        yield
    finally:
        CachedAutotuner.run, CachedAutotuner.__getitem__ = original, original_getitem


def launch(request: Request, config: Any) -> Any:
    """Launch what was requested with a config, as Triton's autotuner does once it has chosen."""
    options = config.all_kwargs()
    if config.pre_hook is not None:
        config.pre_hook({**arguments_of(request), **options})
    return request.autotuner.fn.run(*request.args, **request.kwargs, **options)


def arguments_of(request: Request) -> dict[str, Any]:
    """Return a launch's arguments by name."""
    named = {**dict(zip(request.autotuner.arg_names, request.args, strict=False)), **request.kwargs}
    return {name: value for name, value in named.items() if name not in ("grid", "warmup")}


def signature_of(request: Request) -> object:
    """Return what tells launches apart: shapes and dtypes of tensors, and values of the others."""
    return request.context, tuple(
        (name, str(value.dtype), tuple(value.shape), value.stride())
        if isinstance(value, torch.Tensor)
        else (name, repr(value) if isinstance(value, (int, float, str)) else type(value).__name__)
        for name, value in arguments_of(request).items()
    )


def cases_of(operations: Iterable[Operation]) -> Iterator[Case]:
    """Run operations on the current device, and yield a case for each launch that differs."""
    install()
    seen: set[object] = set()
    for operation in operations:
        launches: list[tuple[CachedAutotuner, Any, object]] = []

        def note(kernel: CachedAutotuner, request: Request, launches: Any = launches) -> Any:
            launches.append((kernel, request.kwargs["grid"], signature_of(request)))
            return request.default

        with choose_configs(note):
            operation.run()
        counts: Counter[str] = Counter()
        for index, (kernel, grid, signature) in enumerate(launches):
            name = kernel.base_fn.__name__
            counts[name] += 1
            if signature not in seen:
                seen.add(signature)
                arguments = partial(_arguments, operation, index)
                yield Case(f"{operation}: {name} {counts[name]}", kernel, grid, arguments)


def _arguments(operation: Operation, index: int) -> Mapping[str, Any]:
    """Run an operation up to one of its launches, and return the arguments of that launch."""
    left = index
    arguments: dict[str, Any] = {}

    def stop(kernel: CachedAutotuner, request: Request) -> Any:
        nonlocal left
        if left == 0:
            arguments.update(arguments_of(request))
            raise _LaunchReached
        left -= 1
        return request.default

    try:
        with choose_configs(stop):
            operation.run()
    except _LaunchReached:
        return arguments
    raise RuntimeError(f"{operation} has no launch {index + 1} any more")
