"""The options of `cached_autotune`, and their validation where a kernel is decorated.

Show the author of a kernel their own errors as Triton shows them.

A config's hook, a pruning function, a benchmark function, a heuristic or the kernel itself may
raise. Some thirty calls of this package lie between the launch and what failed: they are of no help
to the author, and hide the lines that are.

Check the parameters that `cached_autotune` shares with `triton.autotune`.

Triton takes most mistakes in them without a word, or fails at a launch with an error that names
neither kernel nor parameter.
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Union, cast, get_args

from ..errors import SettingsError, did_you_mean
from ..model.buckets import Bucket, BucketSpec, parse_bucket
from ..policy import Rule, config_with
from ..settings import Mode, current_settings
from ..stores import Store, check_url
from ..system.notices import warn_once
from ..triton_internals.config_names import describe
from ..triton_internals.versions import autotune
from ..tuning.benchmark_methods import METHODS, Method
from ..tuning.result_check import CheckOptions
from ..tuning.search import ConfigSpace

if TYPE_CHECKING:
    from triton import Config as TritonConfig
import logging
import sys
from collections.abc import Iterator
from types import TracebackType

from ..system.notices import logger
from ..triton_internals.config_names import unknown_name
from ..triton_internals.identity import kernel_name
from ..triton_internals.versions import Heuristics

__all__ = [
    "CacheOptions",
    "Consensus",
    "DefaultConfig",
    "ModeName",
    "PrunePer",
    "StoreLike",
    "check_compared_arguments",
    "check_declaration",
    "check_key",
    "check_method",
    "check_options",
    "check_policy_default",
    "drop_own_frames",
    "no_configs",
    "policy_buckets",
    "unknown_argument",
    "validate_default",
    "validate_options",
]


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


def validate_options(kernel: str, options: Mapping[str, Any]) -> CacheOptions:
    """Return the options that are given, modes and buckets parsed.

    Args:
        kernel: the kernel's name, for messages.
        options: any keyword arguments.

    Raises:
        SettingsError: an option does not exist or has a value that it cannot have.
    """
    for name in options:
        if name not in CacheOptions.__annotations__:
            remedy = did_you_mean(name, [*CacheOptions.__annotations__, *_TRITON_PARAMETERS])
            raise SettingsError(f"{kernel}: cached_autotune has no option {name!r}: {remedy}")
    parsed = {name: value for name, value in options.items() if value is not None}
    for name, value in parsed.items():
        if name in _PARSERS:
            try:
                parsed[name] = _PARSERS[name](value)
            except (TypeError, ValueError) as error:
                raise SettingsError(f"{kernel}: {name}={value!r}: {error}") from None
    if "buckets" in parsed:
        parsed["buckets"] = _parse_buckets(kernel, parsed["buckets"])
    return cast("CacheOptions", parsed)


def check_key(
    kernel: str, key: Sequence[str], arg_names: Sequence[str], buckets: Mapping[str, Bucket]
) -> None:
    """Check that buckets are of key arguments; warn about a key that names no argument.

    `check_declaration` refuses such a key. A kernel that `install()` adopts comes here with it.

    Raises:
        SettingsError: a bucket is of an argument that is not in the key.
    """
    for name in buckets:
        if name not in key:
            holds = f"add it to key, which holds {', '.join(key) or 'nothing'}"
            remedy = holds if name in arg_names else did_you_mean(name, key)
            raise SettingsError(f"{kernel}: buckets name {name!r}, which is not in key: {remedy}")
    if mistake := unknown_argument("key", key, arg_names):  # older versions than 3.9 ignore it
        warn_once(f"key {kernel}", f"{kernel}: {mistake} (it is ignored)")


def unknown_argument(parameter: str, names: Iterable[str], arg_names: Sequence[str]) -> str | None:
    """Say which of the names that are given to a parameter is no argument of the kernel."""
    for name in names:
        if name not in arg_names:
            remedy = did_you_mean(name, arg_names)
            return f"{parameter} names {name!r}, which is no argument: {remedy}"
    return None


def check_method(kernel: str, options: CacheOptions, do_bench: Callable[..., Any] | None) -> None:
    """Check that a benchmark method is not given beside a benchmark function.

    Raises:
        SettingsError: it is.
    """
    if "method" in options and do_bench is not None:
        raise SettingsError(
            f"{kernel}: method={options['method']!r} and a do_bench of your own: "
            "give only one of them"
        )


def check_compared_arguments(kernel: str, options: CacheOptions, arg_names: Sequence[str]) -> None:
    """Check that what is declared about comparing results is about arguments of the kernel.

    Raises:
        SettingsError: a tolerance, an output or an argument to ignore is of no argument.
    """
    check = options.get("check")
    if not isinstance(check, CheckOptions):
        return
    tolerances = check.tolerance if isinstance(check.tolerance, Mapping) else {}
    named = {"tolerance": tolerances, "ignore": check.ignore, "outputs": check.outputs or ()}
    for option, names in named.items():
        if mistake := unknown_argument(option, names, arg_names):
            raise SettingsError(f"{kernel}: check: {mistake}")


def check_options(options: CacheOptions) -> CheckOptions | None:
    """Return how a kernel's results are compared before a config may win; None: they are not."""
    if not current_settings().check:
        return None
    return options.get("check", CheckOptions()) or None  # type: ignore[return-value]


def policy_buckets(kernel: str, rule: Rule, keys: Sequence[str]) -> dict[str, Bucket]:
    """Return the buckets that a policy gives a kernel; warn about those of no key argument."""
    for name in rule.buckets:
        if name not in keys:
            warn_once(
                f"policy {rule.match} {kernel} {name}",
                f"{kernel}: the policy has a bucket for {name!r}, which is not in key: no effect",
            )
    return {name: bucket for name, bucket in rule.buckets.items() if name in keys}


def check_policy_default(kernel: str, rule: Rule, configs: Sequence[Any]) -> None:
    """Warn about a policy's default that is not among the declared configs."""
    if rule.default and rule.default_among(configs) is None:
        warn_once(
            f"policy {rule.match} {kernel} default",
            f"{kernel}: no declared config is the policy's default {rule.default}: no effect",
        )


def validate_default(kernel: str, default: DefaultConfig, configs: Sequence[Any]) -> None:
    """Check that a default is one of the declared configs or some of its values, or a function.

    A `ConfigSpace` is not searched: its configs depend on the GPU, and there may be none yet.

    Raises:
        SettingsError: the default is something else.
    """
    if isinstance(default, Mapping):
        if mistake := _mistake_in_values(default, configs):
            raise SettingsError(f"{kernel}: default={default!r}: {mistake}")
        return
    if callable(default) and not isinstance(default, type):
        return
    if isinstance(default, type) or not hasattr(default, "all_kwargs"):
        raise SettingsError(
            f"{kernel}: default={default!r}: give a triton.Config, its values by name, or a "
            "function from the launch's arguments by name to one"
        )
    if isinstance(configs, ConfigSpace):
        return
    if describe(default) not in {describe(config) for config in configs}:
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


def _parse_store(store: Any) -> Any:
    if not isinstance(store, (Store, str, os.PathLike)):
        raise TypeError("give a Store, a URL or a folder")
    if isinstance(store, str):
        check_url(store)
    return store


def _parse_mode(mode: Any) -> Mode:
    try:
        return Mode(mode.lower() if isinstance(mode, str) else mode)
    except ValueError:
        raise ValueError(did_you_mean(mode, [choice.value for choice in Mode])) from None


def _parse_choice(choices: Sequence[str]) -> Callable[[Any], Any]:
    def parse(value: Any) -> Any:
        if value not in choices:
            raise ValueError(did_you_mean(value, choices))
        return value

    return parse


def _parse_check(value: Any) -> Any:
    if not isinstance(value, (bool, CheckOptions)):
        raise TypeError("give True, False or CheckOptions(…)")
    if isinstance(value, CheckOptions):
        _refuse_malformed_check(value)
    return CheckOptions() if value is True else value


def _refuse_malformed_check(check: CheckOptions) -> None:
    for option, names in (("ignore", check.ignore), ("outputs", check.outputs or ())):
        if isinstance(names, str):
            raise TypeError(f'{option} is a string: give a list such as ["{names}"]')
        if not isinstance(names, Iterable):
            raise TypeError(f"{option}={names!r}: give a list of arguments, or leave it out")
    if not isinstance(check.repeatable, bool):
        raise TypeError(f"repeatable={check.repeatable!r}: give True or False")
    tolerance = check.tolerance
    shares = tolerance.values() if isinstance(tolerance, Mapping) else [tolerance]
    if not all(share is None or (_is_real(share) and share >= 0) for share in shares):
        raise ValueError("give a tolerance of 0 or more, or one for each of some arguments")
    if not (check.reference is None or callable(check.reference)):
        raise TypeError("give a reference that is a function of the arguments by name")


def _parse_distance(value: Any) -> Any:
    if not _is_real(value) or value < 0:
        raise ValueError("give a finite number of powers of two, 0 or more")
    return value


def _parse_seconds(value: Any) -> Any:
    if not _is_real(value) or value <= 0:
        raise ValueError("give a finite number of seconds above 0, or leave it out for no limit")
    return value


def _parse_count(value: Any) -> Any:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError("give a number of configs, 1 or more, or leave it out for all")
    return value


def _is_real(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value)


_PARSERS: Mapping[str, Callable[[Any], Any]] = {
    "store": _parse_store,
    "mode": _parse_mode,
    "max_distance": _parse_distance,
    "method": _parse_choice(METHODS),
    "tune_seconds": _parse_seconds,
    "tune_configs": _parse_count,
    "consensus": _parse_choice(get_args(Consensus)),
    "check": _parse_check,
    "prune_per": _parse_choice(get_args(PrunePer)),
}


_OWN = __name__.partition(".")[0]

_NEEDED = sys.stdlib_module_names | {"filelock", "httpx", "platformdirs", "pydantic"}
"""Packages whose errors, where this one has called them, are about this one."""


def drop_own_frames(error: BaseException) -> None:
    """Take this package's calls out of the traceback of an author's error.

    An error of this package stays as it is, and so does every error if debug messages are logged.
    """
    entries = list(_walk(error.__traceback__))
    packages = [entry.tb_frame.f_globals.get("__name__", "").partition(".")[0] for entry in entries]
    if _OWN not in packages or logger.isEnabledFor(logging.DEBUG):
        return
    end = len(packages) - packages[::-1].index(_OWN)
    if end == len(packages) or packages[end] in _NEEDED:
        return
    shown = entries[end]
    start = packages.index(_OWN)
    for place in reversed(range(end)):
        is_between = place >= start and packages[place] in sys.stdlib_module_names
        if packages[place] != _OWN and not is_between:
            frame = entries[place]
            shown = TracebackType(shown, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    error.__traceback__ = shown


def _walk(entry: TracebackType | None) -> Iterator[TracebackType]:
    while entry is not None:
        yield entry
        entry = entry.tb_next


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
