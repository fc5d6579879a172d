"""The options of `cached_autotune`, and their validation where a kernel is decorated."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Union, cast, get_args

from pydantic import ValidationError

from ..errors import SettingsError
from ..model.buckets import Bucket, BucketSpec, parse_bucket
from ..policy import Rule
from ..settings import Mode, current_settings
from ..stores import Store
from ..system.notices import warn_once
from ..triton_internals.config_names import describe
from ..tuning.benchmark_methods import METHODS, Method
from ..tuning.config_space import ConfigSpace
from ..tuning.result_check import CheckOptions

if TYPE_CHECKING:
    from triton import Config as TritonConfig

__all__ = [
    "CacheOptions",
    "Consensus",
    "DefaultConfig",
    "ModeName",
    "PrunePer",
    "StoreLike",
    "check_compared_arguments",
    "check_key",
    "check_method",
    "check_options",
    "check_policy_default",
    "policy_buckets",
    "validate_default",
    "validate_options",
]

ModeName = Literal["tune", "reuse", "strict", "off"]
"""A `Mode` by its value."""

Consensus = Literal["none", "ranks"]
"""Whether the ranks of a torch.distributed job choose configs independently or all the same."""

PrunePer = Literal["launch", "scenario"]
"""Whether pruning is asked for each launch that differs, or once for a scenario."""

StoreLike = Union[Store, str, "os.PathLike[str]"]
"""A store, its URL, or the folder of a file store."""

DefaultConfig = Union["TritonConfig", Callable[[Mapping[str, Any]], "TritonConfig"]]
"""A declared config, or a function from a launch's arguments by name to one."""


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
            raise SettingsError(f"{kernel}: {_unknown_option_text(name)}")
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

    Raises:
        SettingsError: a bucket is of an argument that is not in the key.
    """
    for name in buckets:
        if name not in key:
            raise SettingsError(
                f"{kernel}: buckets name {name!r}, which is not in key: add it to key, "
                f"which holds {', '.join(key) or 'nothing'}"
            )
    unknown = [name for name in key if name not in arg_names]
    if unknown:  # Triton 3.9 raises for them, and older versions ignore them
        warn_once(
            f"key {kernel}",
            f"{kernel}: key names {unknown}, which are no arguments: they are ignored",
        )


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
        for name in names:
            if name not in arg_names:
                raise SettingsError(
                    f"{kernel}: check: {option} names {name!r}, which is no argument: "
                    f"choose from {', '.join(arg_names)}"
                )


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
    """Check that a default is one of the declared configs, or a function.

    A `ConfigSpace` is not searched: its configs depend on the GPU, and there may be none yet.

    Raises:
        SettingsError: the default is something else.
    """
    if callable(default):
        return
    if not hasattr(default, "all_kwargs"):
        raise SettingsError(
            f"{kernel}: default={default!r}: give a triton.Config, or a function from the launch's "
            "arguments by name to one"
        )
    if isinstance(configs, ConfigSpace):
        return
    if describe(default) not in {describe(config) for config in configs}:
        raise SettingsError(
            f"{kernel}: default=({default}) is not among the {len(configs)} declared configs: add "
            "it to configs, or choose one of them"
        )


def _unknown_option_text(name: str) -> str:
    similar = difflib.get_close_matches(name, CacheOptions.__annotations__, n=1)
    if similar:
        return f"cached_autotune has no option {name!r}: did you mean {similar[0]!r}?"
    return (
        f"cached_autotune has no option {name!r}: it takes those of triton.autotune, and "
        f"{', '.join(CacheOptions.__annotations__)}"
    )


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
        except ValidationError as error:
            reasons = "; ".join(str(problem["msg"]) for problem in error.errors())
            raise SettingsError(
                f"{kernel}: buckets[{name!r}]={spec!r}: {reasons}; give a bucket such as "
                'Pow2(max=4096), "pow2" or {"kind": "edges", "edges": [1, 16, 256]}'
            ) from None
    return parsed


def _parse_store(store: Any) -> Any:
    if not isinstance(store, (Store, str, os.PathLike)):
        raise TypeError("give a Store, a URL or a folder")
    return store


def _parse_mode(mode: Any) -> Mode:
    try:
        return Mode(mode.lower() if isinstance(mode, str) else mode)
    except ValueError:
        raise ValueError(f"choose one of {', '.join(choice.value for choice in Mode)}") from None


def _parse_choice(choices: Sequence[str]) -> Callable[[Any], Any]:
    def parse(value: Any) -> Any:
        if value not in choices:
            raise ValueError(f"choose one of {', '.join(choices)}")
        return value

    return parse


def _parse_check(value: Any) -> Any:
    if not isinstance(value, (bool, CheckOptions)):
        raise TypeError("give True, False or CheckOptions(…)")
    if isinstance(value, CheckOptions):
        _refuse_malformed_check(value)
    return CheckOptions() if value is True else value


def _refuse_malformed_check(check: CheckOptions) -> None:
    for option in ("ignore", "outputs"):
        names = getattr(check, option)
        if isinstance(names, str):
            raise TypeError(f'{option} is a string: give a list such as ["{names}"]')
    tolerance = check.tolerance
    shares = tolerance.values() if isinstance(tolerance, Mapping) else [tolerance]
    if not all(share is None or (_is_real(share) and share >= 0) for share in shares):
        raise ValueError("give a tolerance of 0 or more, or one for each of some arguments")
    if not (check.reference is None or callable(check.reference)):
        raise TypeError("reference is no function of the arguments by name")


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
