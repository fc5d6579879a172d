"""Between what Triton compiled at a launch and what a record keeps of it, so that it can be compiled again elsewhere.

A binary's key in Triton's cache is made of the kernel's text, its specialisation (types, what is divisible by 16, what
is compiled in), and the compiler's options. Here these are taken from a compiled kernel, and put together again,
with the same config or another one, where there is no GPU. Whatever would not give the very same key is not kept.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

from ..model.record import RecordedLaunch
from ..model.scenario import Device
from .environment import code_generation_variables, is_interpreting
from .source_hash import python_function

__all__ = [
    "Compilation",
    "find_jit_function",
    "jit_function",
    "launch_of",
    "recreate_compilation",
    "target_of",
    "target_of_arch",
    "tuned_launches",
    "wheel",
]

_JSON = "json:"
"""Begins what a scalar cannot say."""

_GLUON = "triton.experimental.gluon.language"


class Compilation(NamedTuple):
    """What `triton.compile` takes.

    Attributes:
        source: Triton's `ASTSource`, of a kernel with its specialisation.
        target: Triton's `GPUTarget`.
        options: the backend's options.
        key: the binary's key in Triton's cache, in hexadecimal.
    """

    source: Any
    target: Any
    options: dict[str, Any]
    key: str


@cache
def wheel() -> str:
    """This build of Triton: its version, the Python that it was built for, and a digest of its files."""
    import triton

    from .versions import triton_key

    abi = sys.implementation.cache_tag.replace("cpython-", "cp")
    digest = hashlib.sha256(triton_key().encode()).hexdigest()[:12]
    return f"triton {triton.__version__} {abi} {platform.machine()} {digest}"


def target_of(device: Device) -> Any:
    """The `GPUTarget` that Triton compiles for on a device.

    Raises:
        ValueError: nothing can be compiled for it.
    """
    try:
        return target_of_arch(device.arch)
    except ValueError:
        raise ValueError(
            f"{device.name} ({device.arch}) is no GPU that Triton compiles for"
        ) from None


def target_of_arch(arch: str) -> Any:
    """Return the `GPUTarget` that Triton compiles for on an architecture, such as `sm_90` or `gfx942`.

    Raises:
        ValueError: Triton does not compile for it.
    """
    from triton.backends.compiler import GPUTarget

    if arch.startswith("sm_"):
        return GPUTarget("cuda", int(arch[3:]), 32)
    if arch.startswith("gfx"):
        return GPUTarget("hip", arch, 64 if arch.startswith("gfx9") else 32)
    raise ValueError(f"{arch} is no architecture that Triton compiles for")


def jit_function(kernel: Any) -> Any:
    """The `JITFunction` at the bottom of a stack of autotuners and heuristics."""
    while hasattr(kernel.fn, "fn"):
        kernel = kernel.fn
    return kernel


def find_jit_function(value: Any) -> Any | None:
    """Return the `JITFunction` inside a decorated kernel, or None if a value is something else."""
    from triton.runtime.jit import JITFunction

    try:
        function = jit_function(value)
    except AttributeError:
        return None
    return function if isinstance(function, JITFunction) else None


def tuned_launches(
    autotuner: Any, config: Any, args: Iterable[Any], kwargs: Mapping[str, Any]
) -> tuple[RecordedLaunch, ...]:
    """What a launch with a config that was just measured compiles: empty where that cannot be told.

    Args:
        autotuner: one whose `nargs` are the launch's.
        config: the `triton.Config`.
    """
    if is_interpreting():
        return ()
    current = {**kwargs, **config.all_kwargs()}
    try:
        if config.pre_hook is not None:
            config.pre_hook({**autotuner.nargs, **current})
        compiled = autotuner.fn.run(*args, **{**current, "warmup": True})
        compiled = compiled.result() if hasattr(compiled, "result") else compiled
        launch = launch_of(
            compiled.src, compiled.metadata, config, heuristics=autotuner.fn is not compiled.src.fn
        )
    except (
        Exception
    ):  # a launch that is not noted costs a compilation later on, and must not cost this one
        return ()
    return () if launch is None else (launch,)


def launch_of(
    source: Any, metadata: Any, config: Any = None, *, heuristics: bool = False
) -> RecordedLaunch | None:
    """What to keep of what Triton compiled, or None where compiling it again would give another key.

    Args:
        source: the `ASTSource`. metadata: the compiled kernel's, a named tuple.
        config: the `triton.Config` that it was compiled with, if it was tuned.
        heuristics: whether other arguments follow from the config's.
    """
    own = {} if config is None else config.all_kwargs()
    try:
        launch = _taken(source, metadata, own)
    except _UntoldError:
        return None
    described = any(type_.startswith("tensordesc") for type_ in launch.signature.values())
    if own and (heuristics or (described and config.pre_hook is not None)):
        from .config_names import describe

        launch = launch.model_copy(update={"bound": describe(config)})
    for options in _guesses(launch, metadata, own):
        guess = RecordedLaunch.model_validate({**launch.model_dump(), "options": options})
        with suppress(AssertionError, ValueError):  # twelve warps are what became of four
            if recreate_compilation(source.fn, guess, own, metadata.target).key == metadata.hash:
                return guess
    return None


def _taken(source: Any, metadata: Any, own: Mapping[str, Any]) -> RecordedLaunch:
    names = source.fn.arg_names

    def parts(paths: Mapping[tuple[int, ...], Any]) -> Iterator[tuple[str, Any]]:
        for path, value in paths.items():
            if names[path[0]] not in own:
                yield ".".join([names[path[0]], *map(str, path[1:])]), value

    return RecordedLaunch(
        wheel=wheel(),
        signature={
            name: _told_type(type_) for name, type_ in source.signature.items() if name not in own
        },
        constants={path: _told(value) for path, value in parts(source.constants)},
        attrs={path: json.dumps(value) for path, value in parts(source.attrs)},
        options=_options(metadata, own),
    )


def _options(metadata: Any, own: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a launch was given, or that its surroundings made others than the default."""
    plain = _backend(metadata.target).parse_options(dict(own))
    given = {}
    for field in dataclasses.fields(plain):
        value = getattr(metadata, field.name, None)
        differs = _told_json(value) != _told_json(getattr(plain, field.name))
        if differs and field.name not in own and field.name != "extern_libs":
            given[field.name] = _told(tuple(value) if isinstance(value, list) else value)
    return given


def _guesses(
    launch: RecordedLaunch, metadata: Any, own: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """The options as they were; Triton overwrites the number of warps where it has specialised some."""
    yield launch.options
    if "num_warps" not in own:
        for warps in (4, 1, 2, 8, 16, 32):
            yield {**launch.options, "num_warps": warps}


def recreate_compilation(
    fn: Any, launch: RecordedLaunch, config: Mapping[str, Any], target: Any
) -> Compilation:
    """What a launch has Triton compile, with a config's values in the place of those it was noted with.

    Args:
        fn: the `JITFunction`. config: meta-parameters and options. target: Triton's `GPUTarget`.

    Raises:
        ValueError: the launch is not one of this kernel, or names what this process does not know.
    """
    backend = _backend(target)
    given = {**{name: _read(value) for name, value in launch.options.items()}, **config}
    signature = {name: _read_type(type_) for name, type_ in launch.signature.items()}
    constants = {_path(fn, path): _read(value) for path, value in launch.constants.items()}
    attrs = {_path(fn, path): json.loads(value) for path, value in launch.attrs.items()}
    own = {name: value for name, value in config.items() if name in fn.arg_names}
    for name, (type_, found) in _specialised(fn, backend, own).items():
        place = (fn.arg_names.index(name),)
        signature[name] = type_
        if type_ == "constexpr":
            constants[place] = own[name]
        if found is not None:
            attrs[place] = found
    if set(signature) != set(fn.arg_names):
        odd = ", ".join(sorted(set(signature) ^ set(fn.arg_names)))
        raise ValueError(
            f"the launch was noted for other parameters than the kernel has now ({odd}): tune it again"
        )
    source = _source_class(fn)(
        fn,
        {name: signature[name] for name in fn.arg_names},
        dict(sorted(constants.items())),
        dict(sorted(attrs.items())),
    )
    options = backend.parse_options(given)
    return Compilation(source, target, dict(options.__dict__), _key(source, backend, options))


def _specialised(fn: Any, backend: Any, own: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Type and attributes (None if there are none) of a config's own values, as Triton finds them at a launch."""
    from triton.runtime.jit import create_function_from_signature

    if not own:
        return {}
    binder = create_function_from_signature(fn.signature, fn.params, backend)
    bound, found, options = binder(**{**dict.fromkeys(fn.arg_names), **own})
    places = {name: fn.arg_names.index(name) for name in own}
    if hasattr(fn, "_pack_args"):
        _, signature, _, attrs = fn._pack_args(backend, {}, bound, found, options)
        return {name: (signature[name], attrs.get((place,))) for name, place in places.items()}
    # Triton 3.4
    told = {name: found[place] for name, place in places.items()}
    return {
        name: (type_, backend.parse_attr(x) if isinstance(x, str) else None)
        for name, (type_, x) in told.items()
    }


def _source_class(fn: Any) -> Any:
    if getattr(fn, "is_gluon", bool)():
        from triton.experimental.gluon._runtime import GluonASTSource

        return GluonASTSource
    from triton.compiler import ASTSource

    return ASTSource


def _backend(target: Any) -> Any:
    from triton.compiler.compiler import make_backend

    return make_backend(target)


def _key(source: Any, backend: Any, options: Any) -> str:
    from .versions import triton_key

    variables = sorted(code_generation_variables().items())
    text = f"{triton_key()}-{source.hash()}-{backend.hash()}-{options.hash()}-{variables}"
    return hashlib.sha256(text.encode()).hexdigest()


def _path(fn: Any, path: str) -> tuple[int, ...]:
    name, *indices = path.split(".")
    if name not in fn.arg_names:
        raise ValueError(f"the kernel has no parameter {name!r} any more: tune it again")
    return (fn.arg_names.index(name), *map(int, indices))


class _UntoldError(Exception):
    """A value that cannot be written down."""


def _told(value: Any) -> Any:
    """A value as a record keeps it."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, str) and not value.startswith(_JSON):
        return value
    return _JSON + json.dumps(_tree(value), sort_keys=True)


def _told_json(value: Any) -> str:
    """What tells two options' values apart, whether or not they went through JSON."""
    return json.dumps(value, sort_keys=True, default=str)


def _told_type(type_: Any) -> str:
    return type_ if isinstance(type_, str) else _JSON + json.dumps(_tree(type_))


def _tree(value: Any) -> Any:
    kind = type(value).__name__
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if kind == "dtype":
        return {"dtype": str(value)}
    if kind == "constexpr":
        return {"constexpr": _tree(value.value)}
    if type(value) is tuple or kind == "tuple":
        return {"tuple": [_tree(each) for each in value]}
    if isinstance(value, list):
        return [_tree(each) for each in value]
    if hasattr(value, "cache_key") and hasattr(value, "fn"):
        function = python_function(value)
        return {"jit": f"{function.__module__}:{function.__qualname__}"}
    if dataclasses.is_dataclass(value) and type(value).__module__.startswith(_GLUON):
        return {
            "layout": kind,
            "fields": {f.name: _tree(getattr(value, f.name)) for f in _made_with(value)},
        }
    raise _UntoldError(f"{kind} {value!r}")


def _made_with(value: Any) -> list[Any]:
    return [field for field in dataclasses.fields(value) if field.init]


def _read(told: Any) -> Any:
    return (
        _grown(json.loads(told[len(_JSON) :]))
        if isinstance(told, str) and told.startswith(_JSON)
        else told
    )


def _read_type(told: str) -> Any:
    return _read(told)


def _grown(tree: Any) -> Any:
    import triton.language as tl

    if isinstance(tree, list):
        return [_grown(each) for each in tree]
    if not isinstance(tree, dict):
        return tree
    match tree:
        case {"float": text}:
            return float(text)
        case {"dtype": name}:
            return tl.dtype(name)
        case {"constexpr": value}:
            return tl.constexpr(_grown(value))
        case {"tuple": parts}:
            return tuple(_grown(part) for part in parts)
        case {"jit": name}:
            return _known_function(name)
        case {"layout": name, "fields": fields}:
            return _layout(name, {key: _grown(value) for key, value in fields.items()})
    raise ValueError(f"a launch names {tree!r}, which this version does not know")


def _known_function(name: str) -> Any:
    """A jit function in a module that is imported already: a record must not get anything imported."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    if not hasattr(found, "cache_key"):
        raise ValueError(
            f"a launch is given {name}, which is not imported here: name its module too"
        )
    return found


def _layout(name: str, fields: Mapping[str, Any]) -> Any:
    from triton.experimental.gluon import language

    kind = getattr(language, name, None) or getattr(getattr(language, "nvidia", None), name, None)
    if not dataclasses.is_dataclass(kind):
        raise ValueError(f"a launch is given the layout {name}, which this Triton does not have")
    return kind(**fields)  # type: ignore[operator]
