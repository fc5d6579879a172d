"""Find the kernels of modules on a machine without a GPU."""

from __future__ import annotations

import importlib
import pkgutil
import sys
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from ..errors import PrewarmError
from ..model.scenario import Config, Scenario
from ..policy import config_with
from ..runtime.autotuner import CachedAutotuner
from ..triton_internals.config_names import describe
from ..triton_internals.identity import find_jit_function, identify, kernel_name

__all__ = ["DiscoveredKernel", "DiscoveredKernels", "default_of", "launch_values"]


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


class DiscoveredKernels(NamedTuple):
    """The kernels of some modules.

    Attributes:
        by_name: the kernels by qualified name.
        left_out: errors of submodules that could not be imported, by name.
    """

    by_name: dict[str, DiscoveredKernel]
    left_out: dict[str, str]

    @classmethod
    def of(cls, names: Sequence[str]) -> DiscoveredKernels:
        """Import modules, with all modules in packages, and collect their kernels.

        Raises:
            PrewarmError: one of the named modules cannot be imported, or none has a kernel.
        """
        left_out: dict[str, str] = {}
        modules = [module for name in names for module in _import_modules(name, left_out)]
        kernels: dict[str, DiscoveredKernel] = {}
        for module in modules:
            for value in _kernels_of_module(module):
                _add(kernels, value)
        if not kernels:
            raise PrewarmError(
                f"there is no kernel in {', '.join(names)}: name the modules that define them"
            )
        return cls(kernels, left_out)


def _import_modules(name: str, left_out: dict[str, str]) -> Iterator[ModuleType]:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise PrewarmError(
            f"{name} cannot be imported: there is no {error.name} on the builder; install it, "
            "or name modules that do without"
        ) from error
    except Exception as error:  # a user's module may raise anything
        raise PrewarmError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error
    yield module
    for submodule in pkgutil.walk_packages(
        getattr(module, "__path__", ()), f"{name}.", onerror=lambda _: None
    ):
        if submodule.name.rpartition(".")[2] == "__main__":
            continue
        try:
            yield importlib.import_module(submodule.name)
        except Exception as error:
            left_out[submodule.name] = f"{type(error).__name__}: {error}"


def _kernels_of_module(module: ModuleType) -> Iterator[Any]:
    """Yield the kernels that a module defines, with all their decorators."""
    for value in list(vars(module).values()):
        if hasattr(value, "fn") and find_jit_function(value) is not None:
            yield value


def _add(kernels: dict[str, DiscoveredKernel], value: Any) -> None:
    function = find_jit_function(value)
    name = kernel_name(function)
    if name not in kernels:
        kernels[name] = DiscoveredKernel(name, _source(function), function, [])
    while value is not function:
        if isinstance(value, CachedAutotuner) and all(
            value is not autotuner for autotuner in kernels[name].autotuners
        ):
            kernels[name].autotuners.append(value)
        value = value.fn


def _source(function: Any) -> str:
    """Return the key of a kernel's code; that of one without a key is in no record."""
    return identify(function, ()).source or uuid.uuid4().hex


def launch_values(config: Config | None, declared: Mapping[Config, Any]) -> dict[str, Any]:
    """Return a config's values as a launch passes them to Triton.

    A declared config keeps its author's own values, which may be of types that records do not have.
    """
    if config is None:
        return {}
    if config in declared:
        return dict(declared[config].all_kwargs())
    return {**config.params, **config.options}


def default_of(
    autotuner: CachedAutotuner,
    scenario: Scenario,
    constants: Mapping[str, Any],
    declared: Collection[Any],
) -> Any:
    """Return the default config of a scenario, or None if it depends on a launch's arguments.

    Args:
        autotuner: the autotuner.
        scenario: the scenario.
        constants: the constants that a launch was compiled with.
        declared: the declared configs.
    """
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
            return None
    if isinstance(default, Mapping):
        default = config_with(default, declared)
    return default or next(iter(declared), None)
