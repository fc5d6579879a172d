"""Record what Triton compiled at a launch, and recreate the compilation elsewhere.

A binary's key in Triton's cache is made of the kernel's source, its specialisation (the arguments'
types, divisibility by 16 and compiled-in values) and the compiler's options. A recorded launch
holds them without the config, so that the same launch can be compiled with any config, on a machine
without a GPU. A launch whose recreated key would differ from Triton's is not recorded.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

from ..model.record import RecordedLaunch
from ..model.scenario import Device
from .compiler_settings import code_generation_variables
from .config_names import LAUNCH_OPTIONS, describe
from .environment import backend_for
from .launch_encoding import (
    UnencodableValueError,
    comparable,
    decode_type,
    decode_value,
    encode_type,
    encode_value,
)

__all__ = [
    "Compilation",
    "binary_key",
    "encode_launch",
    "launch_of",
    "recreate_compilation",
    "source_class",
    "target_of",
    "target_of_arch",
    "wheel",
]


class Compilation(NamedTuple):
    """Arguments of `triton.compile`, and the key of its result.

    Attributes:
        source: Triton's `ASTSource`: a kernel with its specialisation.
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
    """Name this build of Triton by its version, its Python and a digest of its files."""
    import triton

    from .versions import triton_key

    abi = sys.implementation.cache_tag.replace("cpython-", "cp")
    digest = hashlib.sha256(triton_key().encode()).hexdigest()[:12]
    return f"triton {triton.__version__} {abi} {platform.machine()} {digest}"


def target_of(device: Device) -> Any:
    """Return the `GPUTarget` that Triton compiles for on a device.

    Raises:
        ValueError: Triton does not compile for it.
    """
    try:
        return target_of_arch(device.arch)
    except ValueError:
        raise ValueError(
            f"{device.name} ({device.arch}) is no GPU that Triton compiles for"
        ) from None


def target_of_arch(arch: str) -> Any:
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
    source: Any, metadata: Any, config: Any = None, *, heuristics: bool = False
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
        launch = launch.model_copy(update={"options": _options_beside(values, metadata)})
    except UnencodableValueError:
        return None
    has_descriptors = any(type_.startswith("tensordesc") for type_ in launch.signature.values())
    if values and (heuristics or (has_descriptors and config.pre_hook is not None)):
        launch = launch.model_copy(update={"bound": describe(config)})
    for options in _possible_options(launch, values):
        candidate = RecordedLaunch.model_validate({**launch.model_dump(), "options": options})
        # A number of warps that Triton cannot compile with is not the one that it compiled with.
        with suppress(AssertionError, ValueError):
            recreated = recreate_compilation(source.fn, candidate, values, metadata.target)
            if recreated.key == metadata.hash:
                return candidate
    return None


def encode_launch(source: Any, config: Mapping[str, Any]) -> RecordedLaunch:
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
            name: encode_type(type_)
            for name, type_ in source.signature.items()
            if name not in config
        },
        constants={path: encode_value(value) for path, value in without_config(source.constants)},
        attrs={path: json.dumps(value) for path, value in without_config(source.attrs)},
    )


def _options_beside(config: Mapping[str, Any], metadata: Any) -> dict[str, Any]:
    """Return the options that differ from the defaults and were not set by the config."""
    defaults = backend_for(metadata.target).parse_options(dict(config))
    options = {}
    for field in dataclasses.fields(defaults):
        if field.name in config or field.name == "extern_libs":
            continue
        value = getattr(metadata, field.name, None)
        if comparable(value) != comparable(getattr(defaults, field.name)):
            options[field.name] = encode_value(tuple(value) if isinstance(value, list) else value)
    return options


def _possible_options(
    launch: RecordedLaunch, config: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield the options that a launch may have had.

    Triton overwrites `num_warps` in the metadata of warp-specialised kernels: the original is
    guessed.
    """
    yield launch.options
    if "num_warps" not in config:
        for warps in (4, 1, 2, 8, 16, 32):
            yield {**launch.options, "num_warps": warps}


def recreate_compilation(
    fn: Any, launch: RecordedLaunch, config: Mapping[str, Any], target: Any
) -> Compilation:
    """Return what Triton compiles at a recorded launch, with the values of any config.

    Args:
        fn: the `JITFunction`.
        launch: a launch of it, as `launch_of` recorded it.
        config: meta-parameters and options.
        target: Triton's `GPUTarget`.

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
    options = _decode_options(launch)
    parsed = backend.parse_options({**options, **config})
    return Compilation(source, target, dict(parsed.__dict__), binary_key(source, backend, parsed))


def _decode_options(launch: RecordedLaunch) -> dict[str, Any]:
    refused = sorted(launch.options.keys() - LAUNCH_OPTIONS)
    if refused:
        raise ValueError(f"the launch was recorded with {', '.join(refused)}, which no record sets")
    return {name: decode_value(value) for name, value in launch.options.items()}


def source_class(fn: Any) -> Any:
    """Return the class in which Triton compiles a function: Gluon's kernels have their own."""
    if getattr(fn, "is_gluon", bool)():
        from triton.experimental.gluon._runtime import GluonASTSource

        return GluonASTSource
    from triton.compiler import ASTSource

    return ASTSource


def binary_key(source: Any, backend: Any, options: Any) -> str:
    """Return a binary's key in Triton's cache, as `triton.compile` computes it."""
    from .versions import triton_key

    variables = sorted(code_generation_variables().items())
    text = f"{triton_key()}-{source.hash()}-{backend.hash()}-{options.hash()}-{variables}"
    return hashlib.sha256(text.encode()).hexdigest()


def _path(fn: Any, path: str) -> tuple[int, ...]:
    name, *indices = path.split(".")
    if name not in fn.arg_names:
        raise ValueError(f"the kernel has no parameter {name!r} any more: tune it again")
    return (fn.arg_names.index(name), *map(int, indices))
