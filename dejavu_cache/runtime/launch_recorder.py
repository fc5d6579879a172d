"""What is launched beside what is tuned: kernels without configs, and other specialisations of those with them.

A record knows what its winner was compiled with when it was tuned. Later on the same scenario may be launched with
arguments that Triton compiles anew for, and a module's untuned kernels have no record at all. While a process may
tune, Triton tells here what it compiles of the modules in which something is decorated, and that is kept in a record
of its own: of the kernel, with no scenario and no measurements.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from types import SimpleNamespace
from typing import Any

from ..model.record import Record, RecordedLaunch
from ..model.scenario import Context, Kernel, Problem, Scenario
from ..settings import Mode
from ..stores import MemoryStore, TieredStore
from ..triton_internals.compilation import jit_function, launch_of
from ..triton_internals.environment import current_device, current_environment, is_interpreting
from ..triton_internals.hooks import add_compilation_listener
from ..triton_internals.source_hash import kernel_name, python_function, source_hash

__all__ = ["LAUNCH_METHOD", "pause_recording", "record_launches"]

LAUNCH_METHOD = "launch"
"""Stands where a benchmark method does, in the context of such a record."""

_of_module: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
_of_function: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_tuned_now: list[tuple[int, TieredStore]] = []
_lock = threading.Lock()

_PATIENCE = 10.0
"""Seconds that a tune waits for its notes to be written."""


def record_launches(autotuner: Any) -> None:
    """Has the launches of an autotuner's module noted, as far as its mode and its store allow."""
    if is_interpreting():
        return
    function = jit_function(autotuner)
    with _lock:
        _of_module.setdefault(python_function(function).__module__, autotuner)
        _of_function.setdefault(id(function), autotuner)
    _listen()


@contextmanager
def pause_recording(autotuner: Any, store: TieredStore) -> Iterator[None]:
    """While an autotuner's configs are compiled to be measured: none of them is a launch of its own.

    Other kernels that are launched meanwhile are noted where the measurements go.
    """
    tuned = id(jit_function(autotuner)), store
    _tuned_now.append(tuned)
    try:
        yield
    finally:
        if not is_interpreting():
            with suppress(Exception):
                _writer().submit(lambda: None).result(_PATIENCE)
        _tuned_now.remove(tuned)


@cache
def _listen() -> None:
    def listener(*, src: Any, metadata: dict[str, Any], **_: Any) -> None:
        with suppress(Exception):  # a compilation must not fail because of who hears of it
            _heard(src, metadata)

    add_compilation_listener(listener)


@cache
def _writer() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="dejavu-cache launches")


def _heard(source: Any, metadata: dict[str, Any]) -> None:
    function = getattr(source, "fn", None)
    if function is None or any(id(function) == tuned for tuned, _ in _tuned_now):
        return
    autotuner = _of_function.get(id(function))
    keeper = autotuner or _of_module.get(python_function(function).__module__)
    if keeper is None or keeper.mode is not Mode.TUNE:
        return
    store = _tuned_now[-1][1] if _tuned_now else keeper.home
    if any(not (tier.read_only or isinstance(tier, MemoryStore)) for tier in store.tiers):
        _writer().submit(_keep, source, metadata, autotuner, store, current_device())


def _keep(
    source: Any, metadata: dict[str, Any], autotuner: Any, store: TieredStore, device: int
) -> None:
    with suppress(Exception):  # nobody waits for it
        launch = _launch(source, SimpleNamespace(**metadata), autotuner)
        if launch is None:
            return
        context = Context(
            kernel=Kernel(name=kernel_name(source.fn), source=source_hash(source.fn)),
            environment=current_environment(device),
            problem=Problem(keys=(), method=LAUNCH_METHOD),
        )
        found = store.get(context, Scenario())
        if found is None or launch not in (found.record.launches or ()):
            store.put(context, [Record(scenario=Scenario(), launches=(launch,))])


def _launch(source: Any, metadata: Any, autotuner: Any) -> RecordedLaunch | None:
    """The launch without its config, if it is one of a config that can be told."""
    if autotuner is not None and len(autotuner.configs) > 1:
        heuristics = autotuner.fn is not source.fn
        for config in autotuner.configs:
            if _may_be(source, config):
                launch = launch_of(source, metadata, config, heuristics=heuristics)
                if launch is not None:
                    return launch
    return launch_of(source, metadata)


def _may_be(source: Any, config: Any) -> bool:
    places = {
        source.fn.arg_names[path[0]]: value
        for path, value in source.constants.items()
        if len(path) == 1
    }
    return all(places.get(name, value) == value for name, value in config.kwargs.items())
