"""The options of `cached_autotune`, and the checks of what a kernel is decorated with.

Triton takes most mistakes in its own parameters without a word, or fails at a launch with an error
that names neither kernel nor parameter.
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Union, cast, get_args

from ..errors import SettingsError, did_you_mean
from ..model.buckets import Bucket, BucketSpec, parse_bucket
from ..policy import config_with, current_policy
from ..settings import Mode
from ..stores import Store, check_url
from ..system.notices import warn_once
from ..triton_internals.config_names import describe, unknown_name
from ..triton_internals.identity import kernel_name
from ..triton_internals.upstream import Heuristics, autotune
from ..tuning.benchmark_methods import METHODS, Method
from ..tuning.result_check import CheckOptions
from ..tuning.search import ConfigSpace

if TYPE_CHECKING:
    from triton import Config as TritonConfig

__all__ = [
    "CacheOptions",
    "Consensus",
    "DefaultConfig",
    "KernelOptions",
    "ModeName",
    "PrunePer",
    "StoreLike",
    "check_declaration",
    "declared_options",
    "no_configs",
]

_EXAMPLE = 'triton.Config({"BLOCK": 64}, num_warps=4)'
_PRUNING = ("early_config_prune", "perf_model", "top_k")
_TRITON_PARAMETERS = tuple(inspect.signature(autotune).parameters)

ModeName = Literal["tune", "reuse", "strict", "off"]
"""A `Mode` by its value."""

Consensus = Literal["none", "ranks"]
"""Whether the ranks of a torch.distributed job choose configs independently or all the same."""

PrunePer = Literal["launch", "scenario"]
"""Whether pruning is asked for each launch that differs to it within a bucket, or once."""

StoreLike = Union[Store, str, "os.PathLike[str]"]
"""A store, its URL, or the folder of a file store."""

DefaultConfig = Union[
    "TritonConfig", Mapping[str, Any], Callable[[Mapping[str, Any]], "TritonConfig"]
]
"""A declared config, some of its values, or a function from a launch's arguments to one."""


class CacheOptions(TypedDict, total=False):
    """The options that `cached_autotune` adds to those of `triton.autotune`; see there.

    None stands for an option that is not given.
    """

    buckets: Mapping[str, BucketSpec] | None
    store: StoreLike | None
    mode: Mode | ModeName | None
    default: DefaultConfig | None
    max_distance: float | None
    method: Method | None
    tune_seconds: float | None
    tune_configs: int | None
    consensus: Consensus | None
    check: CheckOptions | bool | None
    prune_per: PrunePer | None


class KernelOptions(TypedDict, total=False):
    """The options of one kernel, those that are given by the decorator or else by the policy."""

    buckets: Mapping[str, Bucket]
    store: StoreLike
    mode: Mode
    default: DefaultConfig
    max_distance: float
    method: Method
    tune_seconds: float
    tune_configs: int
    consensus: Consensus
    check: CheckOptions | Literal[False]
    prune_per: PrunePer


def declared_options(
    kernel: str,
    given: Mapping[str, Any],
    arg_names: Sequence[str],
    configs: Sequence[Any],
    key: Sequence[str],
    do_bench: object = None,
) -> KernelOptions:
    """Return a kernel's options: what its decorator is given, and else what the policy says.

    Args:
        kernel: the kernel's name.
        given: the options by name; None stands for one that is not given.
        arg_names: the kernel's parameters.
        configs: the configs to choose from.
        key: the names of the key arguments; one that is no argument is ignored with a warning,
            since a kernel that `install()` adopts comes here with it.
        do_bench: the author's benchmark function, or None.

    Raises:
        SettingsError: an option does not exist or has a value that it cannot have.
    """
    options = {name: _checked(kernel, name, given[name]) for name in given}
    options = {name: value for name, value in options.items() if value is not None}
    buckets = options.pop("buckets", {})
    for name in buckets:
        if name not in key:
            holds = f"add it to key, which holds {', '.join(key) or 'nothing'}"
            remedy = holds if name in arg_names else did_you_mean(name, key)
            raise SettingsError(f"{kernel}: buckets name {name!r}, which is not in key: {remedy}")
    if mistake := _unknown_argument("key", key, arg_names):  # older versions than 3.9 ignore it
        warn_once(f"key {kernel}", f"{kernel}: {mistake} (it is ignored)")
    if "method" in options and do_bench is not None:
        raise SettingsError(
            f"{kernel}: method={options['method']!r} and a do_bench of your own: "
            "give only one of them"
        )
    if isinstance(options.get("check"), CheckOptions):
        _check_compared_arguments(kernel, options["check"], arg_names)
    if "default" in options:
        _check_default(kernel, options["default"], configs)
    inherited = _options_of_policy(kernel, [name for name in key if name in arg_names], configs)
    buckets = {**inherited.pop("buckets"), **buckets}
    return cast("KernelOptions", {**inherited, **options, "buckets": buckets})


def _options_of_policy(kernel: str, keys: Sequence[str], configs: Sequence[Any]) -> dict[str, Any]:
    """Return what the policy says of a kernel; warn about what cannot have an effect."""
    rule = current_policy().rule_for(kernel)
    for name in rule.buckets:
        if name not in keys:
            warn_once(
                f"policy {rule.match} {kernel} {name}",
                f"{kernel}: the policy has a bucket for {name!r}, which is not in key: no effect",
            )
    default = config_with(rule.default, configs) if rule.default else None
    if rule.default and default is None:
        warn_once(
            f"policy {rule.match} {kernel} default",
            f"{kernel}: no declared config is the policy's default {rule.default}: no effect",
        )
    said = {
        "mode": rule.mode,
        "default": default,
        "max_distance": rule.max_distance,
        "tune_seconds": rule.tune_seconds,
        "tune_configs": rule.tune_configs,
        "buckets": {name: bucket for name, bucket in rule.buckets.items() if name in keys},
    }
    return {name: value for name, value in said.items() if value is not None}


_VALUES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "store": (
        lambda value: isinstance(value, (Store, str, os.PathLike)),
        "give a Store, a URL or a folder",
    ),
    "max_distance": (
        lambda value: _is_real(value) and value >= 0,
        "give a finite number of powers of two, 0 or more",
    ),
    "tune_seconds": (
        lambda value: _is_real(value) and value > 0,
        "give a finite number of seconds above 0, or leave it out for no limit",
    ),
    "tune_configs": (
        lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 1,
        "give a number of configs, 1 or more, or leave it out for all",
    ),
    "check": (
        lambda value: isinstance(value, (bool, CheckOptions)),
        "give True, False or CheckOptions(…)",
    ),
}
"""What values some options may have, and what to do about others."""

_CHOICES: Mapping[str, Sequence[str]] = {
    "mode": [mode.value for mode in Mode],
    "method": METHODS,
    "consensus": get_args(Consensus),
    "prune_per": get_args(PrunePer),
}
"""The values of the options that have a few."""


def _checked(kernel: str, name: str, value: Any) -> Any:
    """Return an option's value, modes and buckets parsed.

    Raises:
        SettingsError: there is no such option, or it cannot have this value.
    """
    if name not in CacheOptions.__annotations__:
        remedy = did_you_mean(name, [*CacheOptions.__annotations__, *_TRITON_PARAMETERS])
        raise SettingsError(f"{kernel}: cached_autotune has no option {name!r}: {remedy}")
    if value is None:
        return None
    if name == "buckets":
        return _parse_buckets(kernel, value)
    if name == "mode" and isinstance(value, str):
        value = value.lower()
    mistake = None
    if name in _CHOICES and value not in _CHOICES[name]:
        mistake = did_you_mean(value, _CHOICES[name])
    elif name in _VALUES and not _VALUES[name][0](value):
        mistake = _VALUES[name][1]
    elif isinstance(value, CheckOptions):
        mistake = _mistake_in_check(value)
    elif name == "store" and isinstance(value, str):
        mistake = _mistake_in_url(value)
    if mistake:
        raise SettingsError(f"{kernel}: {name}={value!r}: {mistake}")
    if name == "mode":
        return Mode(value)
    return CheckOptions() if value is True else value


def _mistake_in_url(url: str) -> str | None:
    try:
        check_url(url)
    except SettingsError as error:
        return str(error)
    return None


def _mistake_in_check(check: CheckOptions) -> str | None:
    for option, names in (("ignore", check.ignore), ("outputs", check.outputs or ())):
        if isinstance(names, str):
            return f'{option} is a string: give a list such as ["{names}"]'
        if not isinstance(names, Iterable):
            return f"{option}={names!r}: give a list of arguments, or leave it out"
    if not isinstance(check.repeatable, bool):
        return f"repeatable={check.repeatable!r}: give True or False"
    tolerance = check.tolerance
    shares = tolerance.values() if isinstance(tolerance, Mapping) else [tolerance]
    if not all(share is None or (_is_real(share) and share >= 0) for share in shares):
        return "give a tolerance of 0 or more, or one for each of some arguments"
    if not (check.reference is None or callable(check.reference)):
        return "give a reference that is a function of the arguments by name"
    return None


def _is_real(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value)


def _parse_buckets(kernel: str, buckets: Any) -> dict[str, Bucket]:
    if not isinstance(buckets, Mapping):
        raise SettingsError(
            f"{kernel}: buckets={buckets!r}: give a mapping from key arguments to buckets, such as "
            '{"n": "pow2"}'
        )
    parsed = {}
    for name, spec in buckets.items():
        try:
            parsed[name] = parse_bucket(spec)
        except SettingsError as error:
            raise SettingsError(f"{kernel}: buckets[{name!r}]: {error}") from None
    return parsed


def _unknown_argument(parameter: str, names: Iterable[str], arg_names: Sequence[str]) -> str | None:
    """Say which of the names that are given to a parameter is no argument of the kernel."""
    for name in names:
        if name not in arg_names:
            remedy = did_you_mean(name, arg_names)
            return f"{parameter} names {name!r}, which is no argument: {remedy}"
    return None


def _check_compared_arguments(kernel: str, check: CheckOptions, arg_names: Sequence[str]) -> None:
    """Refuse tolerances, outputs and arguments to ignore that are no arguments of the kernel."""
    tolerances = check.tolerance if isinstance(check.tolerance, Mapping) else {}
    named = {"tolerance": tolerances, "ignore": check.ignore, "outputs": check.outputs or ()}
    for option, names in named.items():
        if mistake := _unknown_argument(option, names, arg_names):
            raise SettingsError(f"{kernel}: check: {mistake}")


def _check_default(kernel: str, default: Any, configs: Sequence[Any]) -> None:
    """Refuse a default that is no declared config, no values of one, and no function.

    A `ConfigSpace` is not searched: its configs depend on the GPU, and there may be none yet.
    """
    if isinstance(default, Mapping):
        if mistake := _mistake_in_values(default, configs):
            raise SettingsError(f"{kernel}: default={default!r}: {mistake}")
    elif isinstance(default, type) or not (callable(default) or hasattr(default, "all_kwargs")):
        raise SettingsError(
            f"{kernel}: default={default!r}: give a triton.Config, its values by name, or a "
            "function from the launch's arguments by name to one"
        )
    elif (
        not callable(default)
        and not isinstance(configs, ConfigSpace)
        and describe(default) not in map(describe, configs)
    ):
        raise SettingsError(
            f"{kernel}: default=({default}) is not among the {len(configs)} declared configs: add "
            "it to configs, or choose one of them"
        )


def _mistake_in_values(default: Mapping[str, Any], configs: Sequence[Any]) -> str | None:
    """Say why values select none of the configs; a space's values are not searched."""
    if not default:
        return 'name at least one value, such as {"num_warps": 4}'
    if isinstance(configs, ConfigSpace):
        known, is_declared = sorted(configs.names), True
    else:
        known = list(dict.fromkeys(name for config in configs for name in config.all_kwargs()))
        is_declared = config_with(default, configs) is not None
    for name in default:
        if name not in known:
            return f"no config sets {name!r}: {did_you_mean(name, known)}"
    if is_declared:
        return None
    return f"none of the {len(configs)} declared configs has these values: name those of one"


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
    if mistake := _unknown_argument(parameter, names, arg_names):
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
