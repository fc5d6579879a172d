"""Record the specialisations that Triton compiles for untuned kernels and extra launches.

A record holds what its winner was compiled with when it was tuned. Later the same scenario may be
launched with arguments for which Triton compiles again, and a module's untuned kernels have no
record at all. While a process may tune, a compilation listener records what Triton compiles of the
modules that contain a cached kernel, and in an engine's worker of the engine's. Each such record is
of the kernel alone: it has an empty scenario, no measurements, and the launches. Nobody waits for
them: a thread writes them a moment later.
"""

import os
import sys
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

from ..model.record import Record, RecordedLaunch
from ..model.scenario import Context, Environment, Kernel, Problem, Scenario
from ..settings import Mode, current_settings
from ..stores import MemoryStore, TieredStore
from ..stores.tiered import as_tiers
from ..system.background_threads import WriterThread, dropping_errors, uninterrupted
from ..system.fork_lock import ForkLock
from ..triton_internals.compilation import launch_of
from ..triton_internals.environment import current_device, current_environment, is_interpreting
from ..triton_internals.hooks import add_compilation_listener
from ..triton_internals.identity import identify, jit_function, kernel_name, python_function

LAUNCH_METHOD = "launch"
"""Benchmark method in the context of records that only hold launches."""

QUIET_SECONDS = 1.0
"""Seconds that a write waits, so that it takes no time from launches that follow in a row."""


class CompiledLaunch(NamedTuple):
    """What Triton has compiled, and where to record it.

    Attributes:
        source: Triton's `ASTSource`.
        metadata: the compiled kernel's.
        autotuner: the kernel's, or None.
        store: where it is recorded.
        environment: the environment in which it was compiled; a setting may change meanwhile.
    """

    source: Any
    metadata: Mapping[str, Any]
    autotuner: Any
    store: TieredStore
    environment: Environment

    def write(self) -> None:
        """Record the launch, unless the store has it or it has no form in records."""
        launch, identity = self.as_recorded(), identify(self.source.fn, ())
        if launch is None or identity.source is None:
            return
        context = Context(
            kernel=Kernel(name=kernel_name(self.source.fn), source=identity.source),
            environment=self.environment,
            problem=Problem(keys=(), method=LAUNCH_METHOD),
        )
        lookup = self.store.get(context, Scenario())
        if lookup is None or launch not in (lookup.record.launches or ()):
            self.store.put(context, [Record(scenario=Scenario(), launches=(launch,))])

    def as_recorded(self) -> RecordedLaunch | None:
        """Return the launch, without its config if that is one that the kernel declares."""
        metadata, source = SimpleNamespace(**self.metadata), self.source
        configs = self.autotuner.configs if self.autotuner is not None else ()
        names = source.fn.arg_names
        constants = {
            names[path[0]]: value for path, value in source.constants.items() if len(path) == 1
        }
        for config in configs if len(configs) > 1 else ():
            if all(constants.get(name, value) == value for name, value in config.kwargs.items()):
                heuristics = self.autotuner.fn is not source.fn
                launch = launch_of(source, metadata, config, heuristics=heuristics)
                if launch is not None:
                    return launch
        return launch_of(source, metadata)


_autotuner_of_module: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
"""The first cached autotuner of each module, whose mode and store are those of the module."""

_autotuner_of_function: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""The first cached autotuner of each jit function, by the function's id."""

_tuned_now: list[tuple[int, int]] = []
"""The process, which may be this one's parent, and the id of each function that is tuned now."""

_lock = ForkLock()


def record_launches(autotuner: Any) -> None:
    """Record the launches of an autotuner's module, as far as its mode and its store allow."""
    if is_interpreting():
        return
    function = jit_function(autotuner)
    with _lock:
        _autotuner_of_module.setdefault(python_function(function).__module__, autotuner)
        _autotuner_of_function.setdefault(id(function), autotuner)
    _add_listener()


def record_launches_of(*packages: str) -> None:
    """Record the launches of packages' modules, as the process's mode and store allow.

    Other modules' would fill the store for nobody: `torch.compile` makes new ones for each model.
    """
    _packages.update(packages)
    _add_listener()


_packages: set[str] = set()


@contextmanager
def pause_recording(autotuner: Any) -> Iterator[None]:
    """Leave out an autotuner's own kernel while its configs are compiled to be measured."""
    tuned = os.getpid(), id(jit_function(autotuner))
    _tuned_now.append(tuned)
    try:
        yield
    finally:
        _tuned_now.remove(tuned)


@cache
def _add_listener() -> None:
    def listener(*, src: Any, metadata: dict[str, Any], **_: Any) -> None:
        with dropping_errors():  # recording must not fail a compilation
            _record_compilation(src, metadata)

    add_compilation_listener(listener)


class _LaunchWriter(WriterThread[CompiledLaunch]):
    """Records launches a moment after the program's first ones."""

    def write(self, items: list[CompiledLaunch]) -> None:
        for launch in items:
            with uninterrupted(), suppress(Exception):  # a record of a launch fails no program
                launch.write()


_writer = _LaunchWriter("dejavu-cache launches", QUIET_SECONDS)


def _record_compilation(source: Any, metadata: dict[str, Any]) -> None:
    function = getattr(source, "fn", None)
    if function is None or (os.getpid(), id(function)) in _tuned_now:
        return
    autotuner = _autotuner_of_function.get(id(function))
    python = python_function(function)
    owner = autotuner or _autotuner_of_module.get(python.__module__)
    # Another process finds a kernel by its name in its module.
    is_found = hasattr(sys.modules.get(python.__module__), python.__qualname__)
    is_found = is_found and python.__module__.partition(".")[0] in _packages
    if not (owner is not None or is_found) or (owner or current_settings()).mode is not Mode.TUNE:
        return
    store = as_tiers(None) if owner is None else owner.home
    # What others have recorded too is kept: an engine's folder is built of what its own start says.
    own = [tier for tier in store.writable if not isinstance(tier, MemoryStore)]
    if own:
        environment = current_environment(current_device())
        _writer.add(CompiledLaunch(source, metadata, autotuner, TieredStore(own), environment))
