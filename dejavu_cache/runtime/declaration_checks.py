"""Check the parameters that `cached_autotune` shares with `triton.autotune`.

Triton takes most mistakes in them without a word, or fails at a launch with an error that names
neither kernel nor parameter.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import SettingsError, did_you_mean
from ..triton_internals.config_names import unknown_name
from ..triton_internals.identity import kernel_name
from ..triton_internals.upstream import Heuristics
from ..tuning.config_space import ConfigSpace
from .options import unknown_argument

__all__ = ["check_declaration", "no_configs"]

_EXAMPLE = 'triton.Config({"BLOCK": 64}, num_warps=4)'
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
    read = _names_that_heuristics_read(fn)
    if read is not None:
        _check_config_names(kernel, parameters["configs"], [*fn.arg_names, *read])
    _check_names(kernel, "key", parameters["key"], fn.arg_names)
    if not parameters["pre_hook"]:  # a hook of the author's own does with the names what it likes
        for name in ("reset_to_zero", "restore_value"):
            if parameters[name] is not None:
                _check_names(kernel, name, parameters[name], fn.arg_names)
    for name in ("pre_hook", "post_hook", "do_bench"):
        if not (parameters[name] is None or callable(parameters[name])):
            raise SettingsError(f"{kernel}: {name}={parameters[name]!r}: give a function")
    _check_pruning(kernel, parameters["prune_configs_by"])


def _check_configs(kernel: str, configs: Any) -> None:
    if isinstance(configs, ConfigSpace):
        return
    is_list = hasattr(configs, "__len__") and hasattr(configs, "__getitem__")
    if configs is None or (is_list and not len(configs)):
        raise SettingsError(f"{kernel}: {no_configs(configs)}")
    if not is_list or isinstance(configs, (str, Mapping)):
        raise SettingsError(f"{kernel}: configs={configs!r}: give a list such as [{_EXAMPLE}]")
    for place, config in enumerate(configs):
        if isinstance(config, type) or not hasattr(config, "all_kwargs"):
            raise SettingsError(
                f"{kernel}: configs[{place}] is {config!r}: give a triton.Config such as {_EXAMPLE}"
            )
        if not isinstance(config.kwargs, Mapping):
            raise SettingsError(
                f"{kernel}: configs[{place}] is triton.Config({config.kwargs!r}): give its values "
                f"by name, such as {_EXAMPLE}"
            )


def no_configs(configs: Any) -> str:
    """Say that a kernel is declared without configs, for which Triton has one of its own."""
    return f"configs={configs!r} leaves nothing to choose from: give a list such as [{_EXAMPLE}]"


def _names_that_heuristics_read(fn: Any) -> list[str] | None:
    """Return the names that heuristics below the autotuner may look up in a config.

    None: not all of a config reaches Triton's `run`, which raises for unknown names, since an
    object of the author's own between the decorators may keep some for itself.
    """
    names: list[str] = []
    while not inspect.isfunction(fn):
        run = vars(fn).get("run", type(fn))
        packages = {part.__module__.partition(".")[0] for part in (type(fn), run)}
        if not packages <= {"triton", "dejavu_cache"}:
            return None
        for heuristic in fn.values.values() if isinstance(fn, Heuristics) else ():
            constants = getattr(getattr(heuristic, "__code__", None), "co_consts", ())
            names += [constant for constant in constants if isinstance(constant, str)]
        fn = fn.fn
    return names


def _check_config_names(kernel: str, configs: Any, arg_names: Sequence[str]) -> None:
    if isinstance(configs, ConfigSpace):
        named = {"its config_space": configs.names}
    else:
        named = {f"configs[{place}]": config.kwargs for place, config in enumerate(configs)}
    for where, names in named.items():
        if mistake := unknown_name(names, arg_names):
            raise SettingsError(f"{kernel}: {where} sets {mistake}")


def _check_names(kernel: str, parameter: str, names: Any, arg_names: Sequence[str]) -> None:
    """Check that a parameter is a collection of names of arguments."""
    if isinstance(names, str) or not hasattr(names, "__iter__"):
        name = names if isinstance(names, str) else "n"
        raise SettingsError(f'{kernel}: {parameter}={names!r}: give a list such as ["{name}"]')
    for name in names:
        if not isinstance(name, str):
            raise SettingsError(
                f"{kernel}: {parameter} holds {name!r}: give the names of arguments, as strings"
            )
    if mistake := unknown_argument(parameter, names, arg_names):
        raise SettingsError(f"{kernel}: {mistake}")


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
                f"{kernel}: prune_configs_by has no {name!r}: {did_you_mean(name, _PRUNING)}"
            )
        if name != "top_k" and not (pruning[name] is None or callable(pruning[name])):
            raise SettingsError(
                f"{kernel}: prune_configs_by[{name!r}]={pruning[name]!r}: give a function"
            )
