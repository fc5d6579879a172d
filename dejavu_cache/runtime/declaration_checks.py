"""Check the parameters that `cached_autotune` shares with `triton.autotune`.

Triton takes most mistakes in them without a word, or fails at a launch with an error that names
neither kernel nor parameter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import SettingsError
from ..triton_internals.source_hash import kernel_name
from ..tuning.config_space import ConfigSpace

__all__ = ["check_declaration"]

_PRUNING = ("early_config_prune", "perf_model", "top_k")


def check_declaration(
    fn: Any,
    configs: Any,
    key: Any,
    tensors: Mapping[str, Any],
    functions: Mapping[str, Any],
    pruning: Any,
) -> None:
    """Check what a kernel is decorated with.

    Args:
        fn: the kernel.
        configs: the configs to choose from.
        key: the names of the key arguments.
        tensors: names of arguments that hooks of Triton's reset or restore, by parameter.
        functions: hooks and the benchmark function, by parameter.
        pruning: `prune_configs_by`.

    Raises:
        SettingsError: something cannot work.
    """
    if not hasattr(fn, "arg_names"):
        raise SettingsError(
            f"{getattr(fn, '__qualname__', repr(fn))}: cached_autotune decorates a kernel: put "
            "@triton.jit directly below @cached_autotune"
        )
    kernel = kernel_name(fn)
    _check_configs(kernel, configs)
    _check_names(kernel, "key", key)
    for parameter, names in tensors.items():
        if names is not None:
            _check_names(kernel, parameter, names, fn.arg_names)
    for parameter, function in functions.items():
        if function is not None and not callable(function):
            raise SettingsError(f"{kernel}: {parameter}={function!r}: give a function")
    _check_pruning(kernel, pruning)


def _check_configs(kernel: str, configs: Any) -> None:
    if configs is None or isinstance(configs, ConfigSpace):  # Triton has a config for None
        return
    example = 'triton.Config({"BLOCK": 64}, num_warps=4)'
    if not (hasattr(configs, "__len__") and hasattr(configs, "__getitem__")):
        raise SettingsError(f"{kernel}: configs={configs!r}: give a list such as [{example}]")
    for place, config in enumerate(configs):
        if not hasattr(config, "all_kwargs"):
            raise SettingsError(
                f"{kernel}: configs[{place}] is {config!r}: give a triton.Config such as {example}"
            )


def _check_names(
    kernel: str, parameter: str, names: Any, arg_names: Sequence[str] | None = None
) -> None:
    """Check that a parameter is a collection of names, if `arg_names` are given of these."""
    if isinstance(names, str) or not hasattr(names, "__iter__"):
        name = names if isinstance(names, str) else "n"
        raise SettingsError(f'{kernel}: {parameter}={names!r}: give a list such as ["{name}"]')
    for name in names:
        if not isinstance(name, str):
            raise SettingsError(
                f"{kernel}: {parameter} holds {name!r}: give the names of arguments, as strings"
            )
        if arg_names is not None and name not in arg_names:
            raise SettingsError(
                f"{kernel}: {parameter} names {name!r}, which is no argument: choose from "
                f"{', '.join(arg_names)}"
            )


def _check_pruning(kernel: str, pruning: Any) -> None:
    if pruning is None:
        return
    if not isinstance(pruning, Mapping):
        raise SettingsError(
            f"{kernel}: prune_configs_by={pruning!r}: give a dictionary such as "
            '{"early_config_prune": function}'
        )
    for name in pruning:
        if name not in _PRUNING:
            raise SettingsError(
                f"{kernel}: prune_configs_by has {name!r}: choose from {', '.join(_PRUNING)}"
            )
