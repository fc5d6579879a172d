"""The options of `cached_autotune`, and the checks of what a kernel is decorated with.

Triton takes most mistakes in its own parameters without a word, or fails at a launch with an error
that names neither kernel nor parameter.
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Union, cast, get_args

from ..errors import SettingsError, did_you_mean
from ..model.buckets import Bucket, BucketSpec, parse_bucket
from ..policy import config_with, current_policy
from ..settings import Mode
from ..stores import Store, check_url
from ..system.notices import warn_once
from ..triton_internals.config_names import describe, unknown_name
from ..triton_internals.identity import kernel_name
from ..triton_internals.versions import Heuristics, autotune
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
    options = {name: value for name, value in given.items() if value is not None}
    _refuse(kernel, _mistakes_in_options(options, arg_names, configs, key, do_bench))
    for mistake in _unknown_arguments("key", key, arg_names):  # older versions than 3.9 ignore it
        warn_once(f"key {kernel}", f"{kernel}: {mistake} (it is ignored)")
    if "mode" in options:
        options["mode"] = Mode(options["mode"].lower())
    if options.get("check") is True:
        options["check"] = CheckOptions()
    inherited = _options_of_policy(kernel, [name for name in key if name in arg_names], configs)
    own = {name: parse_bucket(spec) for name, spec in options.get("buckets", {}).items()}
    buckets = {**inherited["buckets"], **own}
    return cast("KernelOptions", {**inherited, **options, "buckets": buckets})


def _refuse(kernel: str, mistakes: Iterable[str]) -> None:
    for mistake in mistakes:
        raise SettingsError(f"{kernel}: {mistake}")


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
    "buckets": (
        lambda value: isinstance(value, Mapping),
        'give a mapping from key arguments to buckets, such as {"n": "pow2"}',
    ),
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


def _mistakes_in_options(
    options: Mapping[str, Any],
    arg_names: Sequence[str],
    configs: Sequence[Any],
    key: Sequence[str],
    do_bench: object,
) -> Iterator[str]:
    for name in options:
        if name not in CacheOptions.__annotations__:
            remedy = did_you_mean(name, [*CacheOptions.__annotations__, *_TRITON_PARAMETERS])
            yield f"cached_autotune has no option {name!r}: {remedy}"
    for name, value in options.items():
        for mistake in _mistakes_in_value(name, value):
            yield f"{name}={value!r}: {mistake}"
    for name, spec in options.get("buckets", {}).items():
        try:
            parse_bucket(spec)
        except SettingsError as error:
            yield f"buckets[{name!r}]: {error}"
        if name not in key:
            holds = f"add it to key, which holds {', '.join(key) or 'nothing'}"
            remedy = holds if name in arg_names else did_you_mean(name, key)
            yield f"buckets name {name!r}, which is not in key: {remedy}"
    if "method" in options and do_bench is not None:
        yield f"method={options['method']!r} and a do_bench of your own: give only one of them"
    check = options.get("check")
    if isinstance(check, CheckOptions):
        tolerances = check.tolerance if isinstance(check.tolerance, Mapping) else {}
        named = {"tolerance": tolerances, "ignore": check.ignore, "outputs": check.outputs or ()}
        for option, names in named.items():
            for mistake in _unknown_arguments(option, names, arg_names):
                yield f"check: {mistake}"
    if "default" in options:
        yield from _mistakes_in_default(options["default"], configs)


def _mistakes_in_value(name: str, value: Any) -> Iterator[str]:
    if name == "mode" and isinstance(value, str):
        value = value.lower()
    if name in _CHOICES and value not in _CHOICES[name]:
        yield did_you_mean(value, _CHOICES[name])
    if name in _VALUES and not _VALUES[name][0](value):
        yield _VALUES[name][1]
    if isinstance(value, CheckOptions):
        yield from _mistakes_in_check(value)
    if name == "store" and isinstance(value, str):
        try:
            check_url(value)
        except SettingsError as error:
            yield str(error)


def _mistakes_in_check(check: CheckOptions) -> Iterator[str]:
    for option, names in (("ignore", check.ignore), ("outputs", check.outputs or ())):
        if isinstance(names, str):
            yield f'{option} is a string: give a list such as ["{names}"]'
        if not isinstance(names, Iterable):
            yield f"{option}={names!r}: give a list of arguments, or leave it out"
    if not isinstance(check.repeatable, bool):
        yield f"repeatable={check.repeatable!r}: give True or False"
    tolerance = check.tolerance
    shares = tolerance.values() if isinstance(tolerance, Mapping) else [tolerance]
    if not all(share is None or (_is_real(share) and share >= 0) for share in shares):
        yield "give a tolerance of 0 or more, or one for each of some arguments"
    if not (check.reference is None or callable(check.reference)):
        yield "give a reference that is a function of the arguments by name"


def _is_real(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value)


def _mistakes_in_default(default: Any, configs: Sequence[Any]) -> Iterator[str]:
    """Say why a default is no declared config, no values of one, and no function.

    A `ConfigSpace` is not searched: its configs depend on the GPU, and there may be none yet.
    """
    given, is_space = f"default={default!r}", isinstance(configs, ConfigSpace)
    if isinstance(default, Mapping):
        if not default:
            yield f'{given}: name at least one value, such as {{"num_warps": 4}}'
        if isinstance(configs, ConfigSpace):
            known = sorted(configs.names)
        else:
            known = list(dict.fromkeys(name for config in configs for name in config.all_kwargs()))
        for name in default:
            if name not in known:
                yield f"{given}: no config sets {name!r}: {did_you_mean(name, known)}"
        if not is_space and config_with(default, configs) is None:
            yield (
                f"{given}: none of the {len(configs)} declared configs has these values: name "
                "those of one"
            )
    elif isinstance(default, type) or not (callable(default) or hasattr(default, "all_kwargs")):
        yield (
            f"{given}: give a triton.Config, its values by name, or a function from the launch's "
            "arguments by name to one"
        )
    elif not (callable(default) or is_space or describe(default) in map(describe, configs)):
        yield (
            f"default=({default}) is not among the {len(configs)} declared configs: add it to "
            "configs, or choose one of them"
        )


def _unknown_arguments(
    parameter: str, names: Iterable[str], arg_names: Sequence[str]
) -> Iterator[str]:
    """Say which of the names that are given to a parameter are no arguments of the kernel."""
    for name in names:
        if name not in arg_names:
            remedy = did_you_mean(name, arg_names)
            yield f"{parameter} names {name!r}, which is no argument: {remedy}"


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
    _refuse(kernel_name(fn), _mistakes_in_parameters(fn, parameters))


def _mistakes_in_parameters(fn: Any, parameters: Mapping[str, Any]) -> Iterator[str]:
    configs = parameters["configs"]
    yield from _mistakes_in_configs(configs)
    if (read := _names_that_heuristics_read(fn)) is not None:
        if isinstance(configs, ConfigSpace):
            named = {"its config_space": configs.names}
        else:
            named = {f"configs[{place}]": config.kwargs for place, config in enumerate(configs)}
        for where, names in named.items():
            if mistake := unknown_name(names, [*fn.arg_names, *read]):
                yield f"{where} sets {mistake}"
    yield from _mistakes_in_names("key", parameters["key"], fn.arg_names)
    if not parameters["pre_hook"]:  # a hook of the author's own does with the names what it likes
        for name in ("reset_to_zero", "restore_value"):
            if parameters[name] is not None:
                yield from _mistakes_in_names(name, parameters[name], fn.arg_names)
    for name in ("pre_hook", "post_hook", "do_bench"):
        if not (parameters[name] is None or callable(parameters[name])):
            yield f"{name}={parameters[name]!r}: give a function"
    pruning = parameters["prune_configs_by"] or {}
    if not isinstance(pruning, Mapping):
        yield (
            f"prune_configs_by={pruning!r}: give a dictionary such as "
            '{"early_config_prune": function}'
        )
    for name, function in pruning.items():
        if name not in _PRUNING:
            yield f"prune_configs_by has no {name!r}: {did_you_mean(name, _PRUNING)}"
        if not (name == "top_k" or function is None or callable(function)):
            yield f"prune_configs_by[{name!r}]={function!r}: give a function"


def _mistakes_in_configs(configs: Any) -> Iterator[str]:
    if isinstance(configs, ConfigSpace):
        return
    is_list = hasattr(configs, "__len__") and hasattr(configs, "__getitem__")
    if configs is None or (is_list and not len(configs)):
        yield no_configs(configs)
    if not is_list or isinstance(configs, (str, Mapping)):
        yield f"configs={configs!r}: give a list such as [{_EXAMPLE}]"
    for place, config in enumerate(configs):
        if isinstance(config, type) or not hasattr(config, "all_kwargs"):
            yield f"configs[{place}] is {config!r}: give a triton.Config such as {_EXAMPLE}"
        if not isinstance(config.kwargs, Mapping):
            yield (
                f"configs[{place}] is triton.Config({config.kwargs!r}): give its values by name, "
                f"such as {_EXAMPLE}"
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


def _mistakes_in_names(parameter: str, names: Any, arg_names: Sequence[str]) -> Iterator[str]:
    """Say why a parameter is no collection of names of arguments."""
    if isinstance(names, str) or not hasattr(names, "__iter__"):
        name = names if isinstance(names, str) else "n"
        yield f'{parameter}={names!r}: give a list such as ["{name}"]'
    for name in names:
        if not isinstance(name, str):
            yield f"{parameter} holds {name!r}: give the names of arguments, as strings"
    yield from _unknown_arguments(parameter, names, arg_names)
