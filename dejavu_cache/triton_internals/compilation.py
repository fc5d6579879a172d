"""Compile kernels: in threads, out of memory, and elsewhere from what was recorded of a launch.

A binary's key in Triton's cache is made of the kernel's source, its specialisation (the arguments'
types, divisibility by 16 and compiled-in values) and the compiler's options. A recorded launch
holds them without the config, so that the same launch can be compiled with any config, on a machine
without a GPU. A launch whose recreated key would differ from Triton's is not recorded. In a record,
plain values stay as they are; dtypes, jit functions and tuples become a string of JSON with the
prefix `json:`.

Triton keeps every kernel that a function has ever launched, with its binary and the text of each
stage of its compilation. Of a tune, a program launches one of them again: the others are released,
and those that were compiled under other settings are not timed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import platform
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from functools import cache
from threading import main_thread
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from ..model.record import RecordedLaunch
from .config_names import LAUNCH_OPTIONS, describe
from .environment import (
    await_digest,
    backend_for,
    code_generation_variables,
    is_interpreting,
    triton_key,
)
from .identity import is_jit, python_function, value_text

if TYPE_CHECKING:
    from triton import Config as TritonConfig
    from triton.backends.compiler import BaseBackend, GPUTarget
    from triton.compiler import ASTSource, CompiledKernel
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction


class Compilation(NamedTuple):
    """Arguments of `triton.compile`, and the key of its result.

    Attributes:
        source: Triton's `ASTSource`: a kernel with its specialisation.
        target: Triton's `GPUTarget`.
        options: the backend's options.
        key: the binary's key in Triton's cache, in hexadecimal.
    """

    source: ASTSource
    target: GPUTarget
    options: dict[str, Any]
    key: str


@cache
def wheel() -> str:
    """Name this build of Triton by its version, its Python and a digest of its files."""
    import triton

    abi = sys.implementation.cache_tag.replace("cpython-", "cp")
    digest = hashlib.sha256(triton_key().encode()).hexdigest()[:12]
    return f"triton {triton.__version__} {abi} {platform.machine()} {digest}"


def target_of(arch: str) -> GPUTarget:
    """Return the `GPUTarget` of an architecture, such as `sm_90` or `gfx942`.

    Raises:
        ValueError: Triton does not compile for it.
    """
    from triton.backends.compiler import GPUTarget

    if arch.startswith("sm_"):
        return GPUTarget("cuda", int(arch[3:]), 32)
    if arch.startswith("gfx"):
        return GPUTarget("hip", arch, 64 if arch.startswith("gfx9") else 32)
    raise ValueError(f"{arch} is no architecture that Triton compiles for")


def launch_of(
    source: ASTSource,
    metadata: Any,
    config: TritonConfig | None = None,
    *,
    heuristics: bool = False,
) -> RecordedLaunch | None:
    """Record what Triton compiled.

    Args:
        source: the `ASTSource`.
        metadata: the compiled kernel's, a named tuple.
        config: the `triton.Config` that it was compiled with, if it was tuned.
        heuristics: whether `triton.heuristics` computes other arguments from the config's.

    Returns:
        The launch, or None where compiling it again would give another key.
    """
    values = {} if config is None else config.all_kwargs()
    try:
        launch = encode_launch(source, values)
        options = _options_beside(values, metadata)
    except UnencodableValueError:
        return None
    has_descriptors = any(type_.startswith("tensordesc") for type_ in launch.signature.values())
    if config and values and (heuristics or (has_descriptors and config.pre_hook is not None)):
        launch = launch.model_copy(update={"bound": describe(config)})
    # Triton overwrites `num_warps` in the metadata of warp-specialised kernels: it is guessed.
    guessed = () if "num_warps" in values else (4, 1, 2, 8, 16, 32)
    for guess in ({}, *({"num_warps": warps} for warps in guessed)):
        # A number of warps that Triton cannot compile with is not the one that it compiled with.
        with suppress(AssertionError, ValueError):
            candidate = RecordedLaunch.model_validate(
                {**launch.model_dump(), "options": {**options, **guess}}
            )
            recreated = recreate_compilation(source.fn, candidate, values, metadata.target)
            if recreated.key == metadata.hash:
                return candidate
    return None


def encode_launch(source: ASTSource, config: Mapping[str, Any]) -> RecordedLaunch:
    """Return a compilation's arguments without those that a config determines, and no options.

    Raises:
        UnencodableValueError: one of them has no form in records.
    """
    names = source.fn.arg_names

    def without_config(values: Mapping[tuple[int, ...], Any]) -> Iterator[tuple[str, Any]]:
        for path, value in values.items():
            if names[path[0]] not in config:
                yield ".".join([names[path[0]], *map(str, path[1:])]), value

    return RecordedLaunch(
        wheel=wheel(),
        signature={
            name: encode_value(type_)
            for name, type_ in source.signature.items()
            if name not in config
        },
        constants={path: encode_value(value) for path, value in without_config(source.constants)},
        attrs={path: json.dumps(value) for path, value in without_config(source.attrs)},
    )


def describe_compilation(
    source: ASTSource, options: Mapping[str, Any], target: GPUTarget
) -> RecordedLaunch:
    """Return a launch that `recreate_compilation` makes the same compilation of, without a config.

    Raises:
        UnencodableValueError: a constant or an option has no form in records.
    """
    metadata = SimpleNamespace(**{**options, "target": target})
    launch = encode_launch(source, {})
    return launch.model_copy(update={"options": _options_beside({}, metadata)})


def _options_beside(config: Mapping[str, Any], metadata: Any) -> dict[str, Any]:
    """Return the options that differ from the defaults and were not set by the config."""
    defaults = backend_for(metadata.target).parse_options(dict(config))
    options = {}
    for field in dataclasses.fields(defaults):
        if field.name in config or field.name == "extern_libs":
            continue
        value = getattr(metadata, field.name, None)
        if _comparable(value) != _comparable(getattr(defaults, field.name)):
            options[field.name] = encode_value(tuple(value) if isinstance(value, list) else value)
    return options


def recreate_compilation(
    fn: JITFunction, launch: RecordedLaunch, config: Mapping[str, Any], target: GPUTarget
) -> Compilation:
    """Return what Triton compiles at a recorded launch, with the values of any config.

    Raises:
        ValueError: the launch is not one of this kernel, or names what this process does not know.
    """
    from .versions import specialize_values

    backend = backend_for(target)
    signature = {name: decode_type(type_) for name, type_ in launch.signature.items()}
    constants = {_path(fn, path): decode_value(value) for path, value in launch.constants.items()}
    attrs = {_path(fn, path): json.loads(value) for path, value in launch.attrs.items()}
    arguments = {name: value for name, value in config.items() if name in fn.arg_names}
    for name, (type_, attributes) in specialize_values(fn, backend, arguments).items():
        path = (fn.arg_names.index(name),)
        signature[name] = type_
        if type_ == "constexpr":
            constants[path] = arguments[name]
        if attributes is not None:
            attrs[path] = attributes
    if set(signature) != set(fn.arg_names):
        odd = ", ".join(sorted(set(signature) ^ set(fn.arg_names)))
        raise ValueError(
            f"the launch was recorded with other parameters than the kernel has now ({odd}): "
            "tune it again"
        )
    source = source_class(fn)(
        fn,
        {name: signature[name] for name in fn.arg_names},
        dict(sorted(constants.items())),
        dict(sorted(attrs.items())),
    )
    refused = sorted(launch.options.keys() - LAUNCH_OPTIONS)
    if refused:
        raise ValueError(f"the launch was recorded with {', '.join(refused)}, which no record sets")
    options = {name: decode_value(value) for name, value in launch.options.items()}
    parsed = backend.parse_options({**options, **config})
    return Compilation(source, target, dict(parsed.__dict__), binary_key(source, backend, parsed))


def source_class(fn: JITFunction) -> Any:
    """Return the class in which Triton compiles a function: Gluon's kernels have their own."""
    if getattr(fn, "is_gluon", bool)():
        from triton.experimental.gluon._runtime import GluonASTSource

        return GluonASTSource
    from triton.compiler import ASTSource

    return ASTSource


def binary_key(source: ASTSource, backend: BaseBackend, options: Any) -> str:
    """Return a binary's key in Triton's cache, as `triton.compile` computes it."""
    variables = sorted(code_generation_variables().items())
    text = f"{triton_key()}-{source.hash()}-{backend.hash()}-{options.hash()}-{variables}"
    return hashlib.sha256(text.encode()).hexdigest()


def _path(fn: JITFunction, path: str) -> tuple[int, ...]:
    name, *indices = path.split(".")
    if name not in fn.arg_names:
        raise ValueError(f"the kernel has no parameter {name!r} any more: tune it again")
    return (fn.arg_names.index(name), *map(int, indices))


_PREFIX = "json:"

_LAYOUT_VALUE = r"(?:-?\d+|True|False|None|[\[(][\d,\[\]() -]*[\])])"
_LAYOUT = rf"\w+SharedLayout\((?:\w+={_LAYOUT_VALUE}(?:, )?)*\)"
_TYPE = re.compile(
    rf"constexpr|\*?\*?k?[A-Za-z][A-Za-z0-9]*|tensordesc<\w+\[[\d, ]+\](?:,{_LAYOUT})?>", re.ASCII
)
"""Types of arguments. Triton evaluates the layout of a descriptor as Python, so only calls of a
layout with numbers pass."""


class UnencodableValueError(Exception):
    """A value of a type that records have no encoding for."""


def encode_value(value: Any) -> Any:
    """Return a type, a constant or an option as a record keeps it.

    It may be a plain value, a dtype, a jit function of a module, or a tuple of those, perhaps with
    names; else its text is kept, which `decode_value` refuses.

    Raises:
        UnencodableValueError: the value has no text that means the same in another process.
    """
    is_plain = value is None or isinstance(value, (bool, int, str))
    if is_plain or (isinstance(value, float) and math.isfinite(value)):
        is_ambiguous = isinstance(value, str) and value.startswith(_PREFIX)
        return _PREFIX + json.dumps(value) if is_ambiguous else value
    return _PREFIX + json.dumps(_to_tree(value))


def _to_tree(value: Any) -> Any:
    if type(value) is tuple:
        return list(map(_to_tree, value))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {"tuple": _place(type(value)), "items": list(map(_to_tree, value))}
    if type(value).__name__ == "dtype":
        return {"dtype": str(value)}
    if is_jit(value) and hasattr(value, "cache_key"):
        return {"jit": _place(python_function(value))}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if text := value_text(value):  # no process makes the value of it, but all compare it
        return {"text": text}
    raise UnencodableValueError(f"{type(value).__name__} {value!r}")


def _place(definition: Any) -> str:
    return f"{definition.__module__}:{definition.__qualname__}"


def _find(place: str) -> Any:
    """Return what a module that is imported defines: to import one would let a record run code."""
    module, _, names = place.partition(":")
    definition: Any = sys.modules.get(module)
    for name in names.split("."):
        definition = getattr(definition, "__dict__", {}).get(name)
    return definition


def decode_value(encoded: Any) -> Any:
    """Return the value or type that was encoded.

    Raises:
        ValueError: it is none, or names a function that this process does not have.
    """
    if not (isinstance(encoded, str) and encoded.startswith(_PREFIX)):
        return encoded
    try:
        return _from_tree(json.loads(encoded[len(_PREFIX) :]))
    except RecursionError:
        raise ValueError("a launch names a value that is nested too deeply") from None


def _from_tree(tree: Any) -> Any:
    import triton.language as tl

    match tree:
        case list():
            return tuple(map(_from_tree, tree))
        case {"dtype": str(name)}:
            return tl.dtype(name)
        case {"jit": str(name)}:
            function = _find(name)
            if not hasattr(function, "cache_key"):
                raise ValueError(f"a launch is given {name}, which is not imported here")
            return function
        case {"tuple": str(name), "items": list(items)}:
            kind = _find(name)
            is_tuple = isinstance(kind, type) and issubclass(kind, tuple)
            if not is_tuple or len(getattr(kind, "_fields", ())) != len(items):
                raise ValueError(f"a launch is given a {name}, which is not imported here")
            return tuple.__new__(kind, map(_from_tree, items))
        case dict():
            raise ValueError(f"a launch names {tree!r}, which this version does not know")
    return tree


def decode_type(encoded: str) -> Any:
    """Return the argument's type that was encoded: a string, or a tuple of types.

    Raises:
        ValueError: it is not a type, or not written as Triton writes types.
    """
    type_ = decode_value(encoded)
    if not _is_type(type_):
        raise ValueError(f"a launch has an argument of the type {encoded[:200]!r}, which is none")
    return type_


def _is_type(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_type, value))
    return isinstance(value, str) and _TYPE.fullmatch(value) is not None


def _comparable(value: Any) -> str:
    """Return a text that is equal for two options' values even if one of them went through JSON."""
    return json.dumps(value, sort_keys=True, default=str)


def may_compile_in_threads() -> bool:
    """Return whether Triton can compile asynchronously: not under the interpreter, or already.

    Threads begin nothing once the main one has ended, while others may still launch.
    """
    if is_interpreting() or not main_thread().is_alive():
        return False
    from .versions import async_compile

    return async_compile.active_mode.get() is None


@contextmanager
def compiling_in(executor: Executor, begun: dict[str, Any] | None = None) -> Iterator[None]:
    """Have `JITFunction.run` compile in an executor, and return a future, also one of `begun`.

    Triton's own context waits at its end for all that it began; the tuner measures meanwhile.
    """
    from .versions import async_compile

    mode = async_compile.AsyncCompileMode(executor)
    mode.future_kernels = {} if begun is None else begun
    token = async_compile.active_mode.set(mode)
    try:
        yield
    finally:
        async_compile.active_mode.reset(token)


def await_kernel(kernel: Any) -> CompiledKernel:
    """Wait for a kernel's compilation, and return the compiled kernel.

    It takes what `JITFunction.run` returned: a future, a `CompiledKernel`, or None.

    Raises:
        Exception: what Triton raises where the kernel cannot be compiled.
    """
    return kernel.result() if hasattr(kernel, "result") else kernel


def load_binary(kernel: Any) -> None:
    """Wait for a kernel's compilation and load its binary onto the device.

    Triton's loader checks shared memory, tensor memory and threads (which registers limit).

    Raises:
        Exception: what Triton raises where the kernel cannot be compiled or loaded.
    """
    compiled = await_kernel(kernel)
    if hasattr(compiled, "_init_handles"):
        compiled._init_handles()


def build_launcher(function: JITFunction, args: Iterable[Any], kwargs: Mapping[str, Any]) -> None:
    """Build the module that launches a function's kernels with some arguments, for Triton's cache.

    An error is left to the launch.
    """
    from .versions import driver

    keywords = {name: kwargs[name] for name in kwargs.keys() - {"grid", "warmup"}}
    with suppress(Exception):  # one is raised in any case, since there is no compiled kernel yet
        *_, backend, binder = next(iter(function.device_caches.values()))
        values = binder(*args, **keywords)
        _, signature, constants, attrs = function._pack_args(backend, {}, *values)
        driver.active.launcher_cls(function.ASTSource(function, signature, constants, attrs), None)


def forget_failed(function: JITFunction | None) -> None:
    """Remove compilations that failed or were cancelled from a function's cache in memory.

    Triton keeps them, and raises their error at every later launch.
    """
    for kernels, *_ in getattr(function, "device_caches", {}).values():
        for key, kernel in kernels.copy().items():  # in one step, beside other threads
            future = getattr(kernel, "future", None)
            if future is None or not future.done():
                continue
            if future.cancelled() or future.exception() is not None:
                kernels.pop(key, None)


_settings: WeakKeyDictionary[Any, Mapping[str, str] | None] = WeakKeyDictionary()
"""The settings of Triton under which each Python function was compiled; None: several."""

_HELD = "_dejavu_cache_outdated_kernels"
"""Attribute of a `JITFunction` that holds the kernels which it does not launch any more."""


def note_settings(function: JITFunction, settings: Mapping[str, str]) -> None:
    """Note the settings under which the next kernels of a `JITFunction` are compiled."""
    if _settings.setdefault(function.fn, settings) != settings:
        _settings[function.fn] = None


def release_outdated(function: JITFunction, settings: Mapping[str, str]) -> None:
    """Remove a function's kernels from memory if some were compiled under other settings.

    Triton compiles by the settings of the moment and launches what is in memory whatever they are
    by then, so a tune would time the code of the earlier ones.
    """
    if _settings.get(function.fn, settings) != settings:
        for kernels, *_ in list(function.device_caches.values()):
            # A CUDA graph may launch them on, and Triton 3.8 unloads what nobody holds.
            vars(function).setdefault(_HELD, []).append(dict(kernels))
            kernels.clear()
    _settings[function.fn] = settings


def compile_config(
    autotuner: Autotuner, config: TritonConfig, args: Iterable[Any], kwargs: Mapping[str, Any]
) -> CompiledKernel:
    """Return the compiled kernel of a config, from memory if it was launched before.

    The autotuner's `nargs` are the launch's.

    Raises:
        Exception: what Triton raises where the config cannot be compiled.
    """
    await_digest()
    current = {**kwargs, **config.all_kwargs()}
    if config.pre_hook is not None:
        config.pre_hook({**autotuner.nargs, **current})
    return await_kernel(autotuner.fn.run(*args, **{**current, "warmup": True}))


def keys_in_memory(function: JITFunction) -> dict[int, set[str]]:
    """Return the keys of the kernels that a function has in memory, by device."""
    caches = list(function.device_caches.items())
    return {device: set(kernels) for device, (kernels, *_) in caches}


def release_later(
    function: JITFunction, earlier: Mapping[int, Collection[str]], needed: Any
) -> None:
    """Remove kernels that have come since, and whose compilation has ended, from memory.

    A launch that needs one of them again gets it from Triton's cache on the disk. Before Triton
    3.8, which unloads what nobody holds, its module stays on the device. `earlier` is what
    `keys_in_memory` returned before; the needed kernel stays.
    """
    for device, (kernels, *_) in list(function.device_caches.items()):
        for key, kernel in kernels.copy().items():  # in one step, beside other threads
            is_compiled = not hasattr(kernel, "future") or kernel.future.done()
            is_later = is_compiled and key not in earlier.get(device, ())
            if is_later and await_kernel(kernel) is not needed:
                kernels.pop(key, None)
