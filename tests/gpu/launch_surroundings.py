"""Hooks, settings and streams around a launch that a kernel's compilation or launch may see."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from triton import knobs

GPU = torch.cuda.is_available()

Surrounding = Callable[[Any, list[Any]], AbstractContextManager[None]]
"""Takes a `JITFunction`, and a list for what its hooks are given."""


@contextmanager
def launch_hooks(jitted: Any, seen: list[Any]) -> Iterator[None]:
    """Both launch hooks, which look at what they are given."""

    def enter(metadata: Any) -> None:
        seen.append(("enter", metadata.get()["name"]))

    def leave(metadata: Any) -> None:
        seen.append(("exit", metadata.get()["stream"]))

    with _hook("launch_enter_hook", enter), _hook("launch_exit_hook", leave):
        yield


@contextmanager
def exit_hook(jitted: Any, seen: list[Any]) -> Iterator[None]:
    """Set only the hook that runs after a launch."""
    with _hook(
        "launch_exit_hook", lambda metadata: seen.append(metadata and metadata.get()["name"])
    ):
        yield


@contextmanager
def _hook(name: str, function: Any) -> Iterator[None]:
    chain = getattr(knobs.runtime, name)
    if hasattr(chain, "calls"):
        chain.add(function)
        try:
            yield
        finally:
            chain.remove(function)
    else:
        setattr(knobs.runtime, name, function)
        try:
            yield
        finally:
            setattr(knobs.runtime, name, chain)


@contextmanager
def pre_run_hook(jitted: Any, seen: list[Any]) -> Iterator[None]:
    """Register a hook on the function, which sees the arguments as they were passed.

    How often a tune calls it is not specified.
    """

    def hook(*args: Any, **kwargs: Any) -> None:
        called = len(args), sorted(kwargs)
        if called not in seen:
            seen.append(called)

    jitted.add_pre_run_hook(hook)
    try:
        yield
    finally:
        jitted.pre_run_hooks.clear()


@contextmanager
def debug(jitted: Any, seen: list[Any]) -> Iterator[None]:
    """`TRITON_DEBUG`, switched on in the running process."""
    knobs.runtime.debug = True
    try:
        yield
    finally:
        knobs.runtime.debug = False


@functools.cache
def _side_stream(device: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


@contextmanager
def another_stream(jitted: Any, seen: list[Any]) -> Iterator[None]:
    """Another current stream."""
    if not GPU:
        yield
        return
    stream = _side_stream(torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


@contextmanager
def emptied_cache(jitted: Any, seen: list[Any]) -> Iterator[None]:
    """Triton's own cache of compiled kernels is emptied."""
    jitted.device_caches.clear()
    yield


SURROUNDINGS: dict[Surrounding, float] = {
    launch_hooks: 0.05,
    exit_hook: 0.03,
    pre_run_hook: 0.03,
    debug: 0.02,
    another_stream: 0.05,
    emptied_cache: 0.005,
}
"""Share of the random launches that each is around."""
