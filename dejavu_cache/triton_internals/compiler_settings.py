"""The settings that change what Triton generates: its knobs and environment variables.

Triton is asked for all its knobs. A setting is left out if it is known to change no code, or has
its default value; every other one counts, so an unknown setting makes an environment of its own.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import uuid
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["code_generation_variables", "compiler_settings", "unreadable_settings"]

_NEUTRAL_GROUPS = frozenset({"autotuning", "build", "proton", "redis"})
_NEUTRAL_KNOBS = {
    # Not `dump_mir`: Triton 3.9 generates other code while it dumps.
    "amd": {"dump_amdgcn", "libhip_path"},
    "cache": {"dir", "dump_dir", "home_dir", "manager_class", "override_dir"}
    | {"remote_manager_class"},
    "compilation": {"allow_non_constexpr_globals", "always_compile", "dump_ir"}
    | {"front_end_debugging", "listener", "store_binary_only"},
    "nvidia": {"cuobjdump", "dump_nvptx", "dump_ptxas_log", "libcuda_path", "nvdisasm"},
    "runtime": {"interpret", "jit_cache_hook", "jit_post_compile_hook", "kernel_load_end_hook"}
    | {"kernel_load_start_hook", "kernel_unload_hook", "launch_enter_hook", "launch_exit_hook"},
}
_TOOLS = ("ptxas", "ptxas_blackwell")

# Of the variables that are no knobs: those that print, time or write files beside the compilation,
# and those that Triton has read into a knob when it was imported.
_NEUTRAL_VARIABLES = frozenset(
    {"AMDGCN_ENABLE_DUMP", "LLVM_ENABLE_TIMING", "LLVM_IR_ENABLE_DUMP", "MLIR_DUMP_PATH"}
    | {"MLIR_ENABLE_DIAGNOSTICS", "MLIR_ENABLE_DUMP", "MLIR_ENABLE_REMARK", "MLIR_ENABLE_TIMING"}
    | {"NVPTX_ENABLE_DUMP", "TRITON_DEBUG", "TRITON_ENABLE_LLVM_DEBUG"}
    | {"TRITON_ENABLE_PYTHON_STACKTRACE", "TRITON_INSTRUMENTATION_MODE", "TRITON_INTERPRET"}
    | {"TRITON_LLVM_DEBUG_ONLY", "TRITON_PARTITION_SCHEDULING_DUMP_DATA_ONLY"}
    | {"TRITON_PARTITION_SCHEDULING_DUMP_LOOP_ONLY", "TRITON_PARTITION_SCHEDULING_ENABLE_DUMP_DOT"}
    | {"TRITON_REPRODUCER_PATH", "TRITON_BACKENDS_IN_TREE", "TRITON_PLUGIN_VERSION_CHECK"}
)
_COMPILER_PREFIXES = ("AMDGCN_", "MLIR_", "NVPTX_", "PTXAS_", "TRITON_")
# NVIDIA's inference server is called Triton too.
_OTHER_PREFIXES = ("TRITON_SERVER_", "TRITON_CORE_", "TRITON_BACKEND_", "TRITON_VERSION")

_UNREADABLE = f"unreadable {uuid.uuid4().hex}"
"""Value of a setting that no text stands for: equal to no other process's."""


def code_generation_variables() -> dict[str, str]:
    """Return the environment variables that Triton makes part of a binary's key."""
    from triton._C.libtriton import get_cache_invalidating_env_vars

    return {name: str(value) for name, value in get_cache_invalidating_env_vars().items()}


def compiler_settings() -> dict[str, str]:
    """Return the settings that change the generated code and differ from their defaults, by name.

    A knob that an environment variable sets goes by the variable's name.
    """
    settings: dict[str, str] = {}
    handled = set(_NEUTRAL_VARIABLES)
    for group_name, group in _groups():
        for name, descriptor in _knobs(group):
            handled.add(getattr(descriptor, "key", name))
            is_neutral = group_name in _NEUTRAL_GROUPS or name in _NEUTRAL_KNOBS.get(group_name, ())
            if is_neutral or _is_unset_tool(group, name, descriptor):
                continue
            value = getattr(group, name)
            if not _is_default(name, value, descriptor):
                shown = getattr(descriptor, "key", f"{group_name}.{name}")
                settings[shown] = _text(name, value)
    invalidating = code_generation_variables()
    for name in sorted({*invalidating, *_compiler_variables()} - handled):
        value = invalidating.get(name, os.environ.get(name, ""))
        if value not in ("", "false"):  # the compiler's switches are off by default
            settings[name] = _text(name, value)
    return dict(sorted(settings.items()))


def unreadable_settings(settings: Mapping[str, str]) -> list[str]:
    """Return the names of the settings, as `compiler_settings` returns them, without a text."""
    return [name for name, value in settings.items() if value == _UNREADABLE]


def _groups() -> Iterator[tuple[str, Any]]:
    from triton import knobs

    for name, value in sorted(vars(knobs).items()):
        if isinstance(value, knobs.base_knobs):
            yield name, value


def _knobs(group: Any) -> Iterator[tuple[str, Any]]:
    """Return a group's knobs with their descriptors, or None for a plain attribute."""
    from triton import knobs

    kind: Any = type(group)
    members = _class_members(kind)
    for name in sorted({*members, *vars(group)}):
        member = members.get(name)
        if isinstance(member, knobs.env_base):
            yield name, member
        elif not (name.startswith("_") or _is_method(member)):
            yield name, None


@cache
def _class_members(kind: Any) -> dict[str, Any]:
    """Return what a group's class has beyond other groups; programs set knobs on the group."""
    from triton import knobs

    inherited = set(dir(knobs.base_knobs))
    return {name: inspect.getattr_static(kind, name) for name in dir(kind) if name not in inherited}


def _is_method(member: Any) -> bool:
    return isinstance(member, (property, staticmethod, classmethod)) or (
        type(member).__name__ == "function"
    )


def _is_unset_tool(group: Any, name: str, descriptor: Any) -> bool:
    """Return whether a tool is Triton's own: to read the knob would run it for its version."""
    is_own = name in _TOOLS and name not in vars(group) and descriptor is not None
    return is_own and descriptor.key not in os.environ


def _is_default(name: str, value: Any, descriptor: Any) -> bool:
    if descriptor is None:  # read from a variable when Triton was imported, or a hook
        return value is None or value is False or value == ""
    default = _default_of(descriptor)
    if name in _TOOLS:
        return value.path == default or _file_digest(value.path) == _file_digest(default)
    return bool(value == default)


def _default_of(descriptor: Any) -> Any:
    """Return a knob's value where no variable sets it; that of a tool is its path."""
    for name in ("default_path", "default_factory", "default"):
        if hasattr(descriptor, name):
            default = getattr(descriptor, name)
            return default() if callable(default) else default
    return None


def _text(name: str, value: Any) -> str:
    if name == "override":  # a folder's files replace what is compiled
        return _UNREADABLE
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(getattr(value, "path", value))
    if isinstance(value, (str, int)) or hasattr(value, "path"):
        path = Path(text)
        if not (os.sep in text and path.exists()):
            return _shorten(text) or _UNREADABLE
        return _UNREADABLE if path.is_dir() else f"{path.name} {_file_digest(text)}"
    if isinstance(value, (float, tuple, list, type(None))):
        return _shorten(repr(value))
    return _UNREADABLE  # a hook: what it does is not in its name


def _shorten(text: str) -> str:
    """Return a text that tells long ones apart, too."""
    if len(text) <= 500:
        return text
    return f"{text[:460]} {hashlib.sha256(text.encode()).hexdigest()[:32]}"


@cache
def _file_digest(path: str) -> str:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:24]
    except OSError:
        return ""


def _compiler_variables() -> list[str]:
    return [
        name
        for name in os.environ
        if name.startswith(_COMPILER_PREFIXES) and not name.startswith(_OTHER_PREFIXES)
    ]
