"""The options of `cached_autotune`, and the checks of what a kernel is decorated with.

Triton takes many mistakes without a word, or fails at a launch with an error that names neither
kernel nor parameter.
"""

from __future__ import annotations

import inspect
import itertools
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, Union

from pydantic import AfterValidator, ConfigDict, ValidationError

from ..errors import SettingsError, did_you_mean, problem_text
from ..model.buckets import BucketSpec
from ..policy import Rule, config_with, current_policy
from ..settings import Mode
from ..stores import Store, make_absolute
from ..system.notices import warn_once
from ..triton_internals.config_names import describe, unknown_name
from ..triton_internals.identity import kernel_name
from ..triton_internals.versions import autotune
from ..tuning.benchmark_methods import Method
from ..tuning.result_check import CheckOptions
from ..tuning.search import ConfigSpace

if TYPE_CHECKING:
    from triton import Config as TritonConfig

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
    """The options that `cached_autotune` adds to those of `triton.autotune`, all by name.

    One that is not given, or None, comes from the policy file, or else from the environment, as
    `mode` from `DEJAVU_CACHE_MODE`.

    Attributes:
        buckets: for some of the key arguments, the rule that maps a value to its bucket:
            `Pow2(max=4096)`, `"pow2"` or `{"kind": "pow2"}`.
        store: the store, its URL or a folder; else `DEJAVU_CACHE_URL`.
        mode: what a launch may do on a miss: `tune`, `reuse`, `strict` or `off`.
        default: the declared config that a miss falls back on, some of its values (`{"BLOCK": 64}`
            is the first config with them), or a function from the arguments by name to one of
            these; else the first config.
        method: how configs are timed: `events-cold` (the default), `events-warm`, `cudagraph-cold`
            or `cudagraph-warm`.
        tune_seconds: seconds that one tune may take, above 0; the next process continues it.
        tune_configs: the number of measured configs at which a scenario counts as tuned, 1 or more.
        tune_loss: once records predict a kernel, a tune leaves out configs that are unlikely to be
            faster than the best by more than this share, by default 0.01; 0 measures all.
        consensus: `ranks` makes all ranks of a torch.distributed job run one rank's choice; `none`
            does not.
        check: how results are compared with the default config's before a config may win; False
            compares nothing.
        prune_per: within a bucket, `launch` (the default) prunes for each launch that differs in
            what the functions read of its arguments; `scenario` prunes once.
    """

    buckets: Mapping[str, BucketSpec] | None
    store: StoreLike | None
    mode: Mode | ModeName | None
    default: DefaultConfig | None
    method: Method | None
    tune_seconds: float | None
    tune_configs: int | None
    tune_loss: float | None
    consensus: Consensus | None
    check: CheckOptions | bool | None
    prune_per: PrunePer | None


def declared_options(
    kernel: str,
    given: Mapping[str, Any],
    arg_names: Sequence[str],
    configs: Sequence[Any],
    key: Sequence[str],
    do_bench: object = None,
) -> dict[str, Any]:
    """Return a kernel's options: what its decorator is given, and else what the policy says.

    They are as `CacheOptions` has them, with a `Bucket` for each spelling, and none is None.

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
    for name in given:
        if name not in CacheOptions.__annotations__:
            remedy = did_you_mean(name, [*CacheOptions.__annotations__, *_TRITON_PARAMETERS])
            raise SettingsError(f"{kernel}: cached_autotune has no option {name!r}: {remedy}")
    try:
        checked = _GivenOptions.model_validate(
            {name: value for name, value in given.items() if value is not None}
        )
    except ValidationError as error:
        raise SettingsError(f"{kernel}: {_first_mistake(error)}") from None
    options = {name: getattr(checked, name) for name in checked.model_fields_set}
    for mistake in _mistakes_in_options(options, arg_names, configs, key, do_bench):
        raise SettingsError(f"{kernel}: {mistake}")
    for mistake in _unknown_arguments("key", key, arg_names):  # older versions than 3.9 ignore it
        warn_once(f"key {kernel}", f"{kernel}: {mistake} (it is ignored)")
    if options.get("check") is True:
        options["check"] = CheckOptions()
    inherited = _options_of_policy(kernel, [name for name in key if name in arg_names], configs)
    buckets = {**inherited["buckets"], **checked.buckets}
    return {**inherited, **options, "buckets": buckets}


def _check_store(store: Any) -> Any:
    if isinstance(store, str):
        make_absolute(store)  # or say what is wrong with it
    elif not isinstance(store, (Store, os.PathLike)):
        raise ValueError("give a Store, a URL or a folder")
    return store


class _GivenOptions(Rule):
    """What a decorator may be given: what the policy may say of a kernel, and more."""

    model_config = ConfigDict(revalidate_instances="always")  # nobody has checked `CheckOptions`

    match: str = "*"
    default: Any = None
    store: Annotated[Any, AfterValidator(_check_store)] = None
    method: Method | None = None
    consensus: Consensus | None = None
    check: CheckOptions | bool | None = None
    prune_per: PrunePer | None = None


def _first_mistake(error: ValidationError) -> str:
    problem = max(error.errors(include_url=False), key=lambda problem: len(problem["loc"]))
    name, *within = problem["loc"]
    if name == "buckets" and within:
        return f"buckets[{within[0]!r}]: {problem_text(problem)}"
    if name == "check" and within[1:]:
        name = f"check: {within[1]}"
    return f"{name}={problem['input']!r}: {problem_text(problem)}"


def _options_of_policy(kernel: str, keys: Sequence[str], configs: Sequence[Any]) -> dict[str, Any]:
    """Return what the policy says of a kernel; warn about what cannot have an effect."""
    rule = current_policy().rule_for(kernel)
    for name in rule.buckets.keys() - set(keys):
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
    said = {name: getattr(rule, name) for name in rule.model_fields_set - {"match", "install"}}
    buckets = {name: bucket for name, bucket in rule.buckets.items() if name in keys}
    said |= {"default": default, "buckets": buckets}
    return {name: value for name, value in said.items() if value is not None}


def _mistakes_in_options(
    options: Mapping[str, Any],
    arg_names: Sequence[str],
    configs: Sequence[TritonConfig],
    key: Sequence[str],
    do_bench: object,
) -> Iterator[str]:
    for name in options.get("buckets", ()):
        if name not in key:
            holds = f"add it to key, which holds {', '.join(key) or 'nothing'}"
            remedy = holds if name in arg_names else did_you_mean(name, key)
            yield f"buckets name {name!r}, which is not in key: {remedy}"
    if "method" in options and do_bench is not None:
        yield f"method={options['method']!r} and a do_bench of your own: give only one of them"
    if isinstance(check := options.get("check"), CheckOptions):
        named = {"tolerance": check.tolerance, "ignore": check.ignore, "outputs": check.outputs}
        for option, names in named.items():
            yield from _unknown_arguments(f"check: {option}", names, arg_names)
    if "default" in options:
        yield from _mistakes_in_default(options["default"], configs)


def _mistakes_in_default(default: Any, configs: Sequence[TritonConfig]) -> Iterator[str]:
    """Say why a default is no declared config, no values of one, and no function.

    A `ConfigSpace` is not searched: its configs depend on the GPU, and there may be none yet.
    """
    space = configs if isinstance(configs, ConfigSpace) else None
    if isinstance(default, Mapping):
        named = itertools.chain(*(config.all_kwargs() for config in (() if space else configs)))
        values = sorted(space.names) if space else [*dict.fromkeys(named)]
        for name in default:
            if name not in values:
                yield f"default={default!r}: no config sets {name!r}: {did_you_mean(name, values)}"
        if not space and config_with(default, configs) is None:
            yield (
                f"default={default!r}: none of the {len(configs)} declared configs has these "
                "values: name those of one"
            )
    elif isinstance(default, type) or not (callable(default) or hasattr(default, "all_kwargs")):
        yield (
            f"default={default!r}: give a triton.Config, its values by name, or a function from "
            "the launch's arguments by name to one"
        )
    elif not (callable(default) or space or describe(default) in map(describe, configs)):
        yield (
            f"default=({default}) is not among the {len(configs)} declared configs: add it to "
            "configs, or choose one of them"
        )


def _unknown_arguments(parameter: str, names: object, arg_names: Sequence[str]) -> Iterator[str]:
    """Say which of the names that are given to a parameter are no arguments of the kernel."""
    for name in names if isinstance(names, Collection) else ():  # an iterator gives them once
        if name not in arg_names:
            remedy = did_you_mean(name, arg_names)
            yield f"{parameter} names {name!r}, which is no argument: {remedy}"


def refuse_mistakes(
    fn: Any,
    configs: Sequence[TritonConfig],
    arguments: Mapping[str, Sequence[str] | None],
    functions: Mapping[str, object],
    prune_configs_by: Mapping[str, Any] | None,
) -> None:
    """Check the parameters of `triton.autotune`; `arguments` are those that name the kernel's.

    `functions` are those that are called.

    Raises:
        SettingsError: something cannot work, or would be ignored.
    """
    if not hasattr(fn, "arg_names"):
        raise SettingsError(
            f"{getattr(fn, '__qualname__', repr(fn))}: cached_autotune decorates a kernel: put "
            "@triton.jit directly below @cached_autotune"
        )
    for name, function in functions.items():
        if not (function is None or callable(function)):
            raise SettingsError(f"{kernel_name(fn)}: {name}={function!r}: give a function")
    for mistake in _mistakes_in_parameters(fn, configs, arguments, prune_configs_by or {}):
        raise SettingsError(f"{kernel_name(fn)}: {mistake}")


def _mistakes_in_parameters(
    fn: Any,
    configs: Sequence[TritonConfig],
    arguments: Mapping[str, Sequence[str] | None],
    prune_configs_by: Mapping[str, Any],
) -> Iterator[str]:
    if isinstance(configs, ConfigSpace):
        named: Mapping[str, Iterable[str]] = {"its config_space": configs.names}
    elif configs and isinstance(configs, Collection) and all(hasattr(c, "kwargs") for c in configs):
        named = {f"configs[{index}]": config.kwargs for index, config in enumerate(configs)}
    else:
        named = {}
        yield (
            f"configs={configs!r} leaves nothing to choose from: give a list such as "
            '[triton.Config({"BLOCK": 64}, num_warps=4)]'
        )
    if _reaches_triton(fn):
        for where, names in named.items():
            if mistake := unknown_name(names, fn.arg_names):
                yield f"{where} sets {mistake}"
    for parameter, entries in arguments.items():
        if not isinstance(entries, Iterable | None):
            yield f"{parameter}={entries!r}: give a list of arguments"
        yield from _unknown_arguments(parameter, entries, fn.arg_names)
    parts = ("early_config_prune", "perf_model", "top_k")
    for name in [name for name in prune_configs_by if name not in parts]:
        yield f"prune_configs_by has no {name!r}: {did_you_mean(name, parts)}"


def _reaches_triton(fn: Any) -> bool:
    """Return whether all of a config reaches Triton's `run`, which raises for unknown names.

    An object of the author's own between the decorators may keep some for itself.
    """
    while not inspect.isfunction(fn):
        run = vars(fn).get("run", type(fn))
        if any(part.__module__.partition(".")[0] != "triton" for part in (type(fn), run)):
            return False
        fn = fn.fn
    return True
