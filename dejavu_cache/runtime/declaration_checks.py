"""Check the parameters that `cached_autotune` shares with `triton.autotune`.

Triton takes most mistakes in them without a word, or fails at a launch with an error that names
neither kernel nor parameter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import SettingsError
from ..triton_internals.identity import kernel_name
from ..tuning.config_space import ConfigSpace

__all__ = ["check_declaration"]

_PRUNING = ("early_config_prune", "perf_model", "top_k")


def check_declaration(fn: Any, parameters: Mapping[str, Any]) -> None:
    """Check what a kernel is decorated with.

    Args:
        fn: the kernel.
        parameters: those of `triton.autotune`, by name.

    Raises:
        SettingsError: something cannot work.
    """
    if not hasattr(fn, "arg_names"):
        raise SettingsError(
            f"{getattr(fn, '__qualname__', repr(fn))}: cached_autotune decorates a kernel: put "
            "@triton.jit directly below @cached_autotune"
        )
    kernel = kernel_name(fn)
    _check_configs(kernel, parameters["configs"])
    _check_names(kernel, "key", parameters["key"])
    if not parameters["pre_hook"]:  # a hook of the author's own does with the names what it likes
        for name in ("reset_to_zero", "restore_value"):
            if parameters[name] is not None:
                _check_names(kernel, name, parameters[name], fn.arg_names)
    for name in ("pre_hook", "post_hook", "do_bench"):
        if not (parameters[name] is None or callable(parameters[name])):
            raise SettingsError(f"{kernel}: {name}={parameters[name]!r}: give a function")
    _check_pruning(kernel, parameters["prune_configs_by"])


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
