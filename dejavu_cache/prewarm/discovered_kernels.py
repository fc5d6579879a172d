"""Find the kernels of modules by importing them, without a GPU.

A package stands for all modules in it. Beside a kernel stand the autotuners that decorate it, for
the configs and defaults that they declare.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from inspect import getattr_static
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from ..errors import PrewarmError, SettingsError
from ..model.record import RecordedLaunch
from ..model.scenario import Config, Scenario
from ..policy import config_with
from ..runtime.autotuner import CachedAutotuner
from ..triton_internals.config_names import describe
from ..triton_internals.identity import find_jit_function, identify, kernel_name


class DiscoveredKernel(NamedTuple):
    """A kernel as its module defines it.

    Attributes:
        name: qualified name.
        source: key of the code.
        function: Triton's `JITFunction`.
        autotuners: the autotuners that decorate it: usually one, or none if it is not tuned.
    """

    name: str
    source: str
    function: Any
    autotuners: list[CachedAutotuner]

    @property
    def sources(self) -> frozenset[str]:
        """Keys that the kernel's records have."""
        return frozenset({self.source, *(tuner.declaration.source for tuner in self.autotuners)})

    def configs(self, backend: str) -> dict[Config, Any]:
        """Return the configs declared for a backend (`cuda`, `hip`) by their names in records."""
        declared: dict[Config, Any] = {}
        for autotuner in self.autotuners:
            space: Any = autotuner.configs
            for config in space.for_vendor(backend) if hasattr(space, "for_vendor") else space:
                declared.setdefault(describe(config), config)
        return declared

    def default(
        self, declared: Mapping[Config, Any], scenario: Scenario, launch: RecordedLaunch | None
    ) -> Config | None:
        """Return a scenario's default config, as far as it can be told from a recorded launch."""
        constants = {
            name: value
            for name, value in (launch.constants if launch else {}).items()
            if not (isinstance(value, str) and value.startswith("json:"))
        }
        for autotuner in self.autotuners:
            default = autotuner.declaration.options.get("default")
            if callable(default):
                try:
                    import torch

                    tensors = {  # their element types are all that is known
                        name: torch.empty(0, dtype=getattr(torch, dtype), device="meta")
                        for name, dtype in scenario.dtypes.items()
                        if hasattr(torch, dtype)
                    }
                    default = default({**tensors, **constants, **scenario.args})
                except Exception:  # it may use more of its arguments than is known here
                    continue
            if isinstance(default, Mapping):
                default = config_with(default, declared.values())
            default = default or next(iter(declared.values()), None)
            if default is not None:
                return describe(default)
        return None


class DiscoveredKernels(NamedTuple):
    """The kernels of some modules.

    Attributes:
        by_name: the kernels by qualified name.
        left_out: errors of submodules that could not be imported, by name.
    """

    by_name: dict[str, DiscoveredKernel]
    left_out: dict[str, str]

    @classmethod
    def of(cls, names: Sequence[str], recorded: Iterable[str] = ()) -> DiscoveredKernels:
        """Import modules, with all modules in packages, and recorded ones; collect their kernels.

        Raises:
            SettingsError: one of the named modules cannot be imported, or none has a kernel.
            PrewarmError: a recorded module lacks another one; what is not of this version of the
                engine is left out.
        """
        left_out: dict[str, str] = {}
        modules = [module for name in names for module in _import_modules(name, left_out)]
        modules += _import_each(recorded, left_out, is_needed=True)
        kernels: dict[str, DiscoveredKernel] = {}
        for module in modules:
            for value in list(vars(module).values()):
                # A proxy or a mock may have any attribute, without end, or raise any error.
                if getattr_static(value, "fn", None) and find_jit_function(value) is not None:
                    _add(kernels, value)
        if not kernels:
            raise SettingsError(
                f"there is no kernel in {', '.join(names)}: name the modules that define them"
            )
        return cls(kernels, left_out)


def _import_modules(name: str, left_out: dict[str, str]) -> Iterator[ModuleType]:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        why = f"{type(error).__name__}: {error}"
        if isinstance(error, ModuleNotFoundError):
            why = f"{error}: install it on the builder, or name modules that do without"
        raise SettingsError(f"{name} cannot be imported: {why}") from error
    yield module
    folders = getattr(module, "__path__", ())
    submodules = pkgutil.walk_packages(folders, f"{name}.", onerror=lambda _: None)
    yield from _import_each((submodule.name for submodule in submodules), left_out)


def _import_each(
    names: Iterable[str], left_out: dict[str, str], *, is_needed: bool = False
) -> Iterator[ModuleType]:
    for name in names:
        if name.rpartition(".")[2] == "__main__":
            continue
        try:
            yield importlib.import_module(name)
        except (Exception, SystemExit) as error:
            lacking = error.name if isinstance(error, ModuleNotFoundError) else None
            if is_needed and lacking and not f"{name}.".startswith(f"{lacking}."):
                raise PrewarmError(
                    f"{name} has kernels of the engine and cannot be imported: install {lacking}"
                ) from error
            left_out[name] = f"{type(error).__name__}: {error}"


def _add(kernels: dict[str, DiscoveredKernel], value: Any) -> None:
    """Add a kernel, with all its decorators."""
    function = find_jit_function(value)
    name = kernel_name(function)
    if name not in kernels:
        source = identify(function, ()).source or uuid.uuid4().hex  # without a key, of no record
        kernels[name] = DiscoveredKernel(name, source, function, [])
    while value is not function:
        earlier = map(id, kernels[name].autotuners)
        if isinstance(value, CachedAutotuner) and id(value) not in earlier:
            kernels[name].autotuners.append(value)
        value = value.fn


def launch_values(config: Config | None, declared: Mapping[Config, Any]) -> dict[str, Any]:
    """Return a config's values as a launch passes them to Triton.

    A declared config keeps its author's own values, which may be of types that records do not have.
    """
    if config is None or config not in declared:
        return config.values if config else {}
    return dict(declared[config].all_kwargs())
