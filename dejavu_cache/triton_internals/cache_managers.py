"""Cache managers for Triton that build and read folders of binaries.

Triton's own cache holds absolute paths and must be writable. The managers here write folders that
can be moved, and read them where they may not be written to.

Below them are the keys by which Triton's own autotuner keeps results, in memory and on disk.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from ..system.fork_lock import cached_property
from ..system.notices import warn_once
from ..system.safe_files import private_temporary_folder
from .environment import backend_hash, code_generation_variables, current_target, triton_key
from .hooks import (
    cache_manager,
    hash_callees_first,
    set_cache_folder,
    set_cache_manager,
    set_platform_key,
)

if TYPE_CHECKING:
    from triton import Config as TritonConfig
    from triton.runtime.autotuner import Autotuner

__all__ = [
    "CUDA_UTILS",
    "BinarySource",
    "cuda_utils_key",
    "disk_cache_key",
    "launch_key",
    "relocatable_cache",
    "sealed_cache",
    "serve_binaries",
]


CUDA_UTILS = f"cuda_utils{sysconfig.get_config_var('EXT_SUFFIX')}"
"""Triton's module that calls the CUDA driver; from 3.8 on, its key depends on the driver's path."""


class BinarySource(Protocol):
    """Binaries that may be loaded, by Triton's keys."""

    def find(self, key: str, name: str) -> Path | None:
        """Return the path of a file that was checked, or None."""


def serve_binaries(sources: Sequence[BinarySource], host_key: str) -> None:
    """Put binaries before Triton's cache, for the rest of the process.

    Args:
        sources: the binaries, as `sealed_cache` takes them.
        host_key: the builder's platform key, as `hooks.set_platform_key` takes it.
    """
    set_cache_manager(sealed_cache(sources, cache_manager()))
    hash_callees_first()
    set_platform_key(host_key)


def sealed_cache(sources: Sequence[BinarySource], otherwise: Any = None) -> Any:
    """Return a cache manager class that reads sealed binaries, and writes elsewhere.

    Args:
        sources: binaries by Triton's keys, in the order in which they are asked.
        otherwise: the class for all other files, Triton's own if None. Where it cannot write,
            it gets a temporary folder.
    """
    from triton.runtime.cache import CacheManager, FileCacheManager

    manager = otherwise or FileCacheManager

    class SealedCache(CacheManager):  # type: ignore[misc]
        def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
            self._arguments = key, override, dump
            self._sources = () if override or dump else tuple(sources)

        @cached_property
        def _writable(self) -> Any:
            return _writable_manager(manager, self._arguments)

        def _find(self, filename: str) -> str | None:
            keys = [self._arguments[0], *([cuda_utils_key()] if filename == CUDA_UTILS else ())]
            found = (source.find(key, filename) for key in keys for source in self._sources)
            return next((str(path) for path in found if path is not None), None)

        def get_file(self, filename: str) -> str | None:
            path: str | None = self._find(filename) or self._writable.get_file(filename)
            return path

        def get_group(self, filename: str) -> dict[str, str] | None:
            if listing := self._find(f"__grp__{filename}"):
                names = json.loads(Path(listing).read_bytes())["child_paths"]
                paths = {name: path for name in names if (path := self._find(name))}
                if len(paths) == len(names):  # none of them must not be loaded
                    return paths
            group: dict[str, str] | None = self._writable.get_group(filename)
            return group

        def put(self, data: Any, filename: str, binary: bool = True) -> str:
            return str(self._writable.put(data, filename, binary=binary))

        def put_group(self, filename: str, group: dict[str, str]) -> Any:
            return self._writable.put_group(filename, group)

    return SealedCache


def relocatable_cache() -> Any:
    """Return a cache manager class whose files hold no absolute paths.

    Its attribute `touched` collects the keys that Triton asks for.
    """
    from triton.runtime.cache import FileCacheManager

    class RelocatableCache(FileCacheManager):  # type: ignore[misc]
        touched: dict[str, bool]
        """Keys that were asked for, and whether a file was put there."""

        def get_file(self, filename: str) -> str | None:
            self._use_portable_key(filename)
            path: str | None = super().get_file(filename)
            if path is not None:
                type(self).touched.setdefault(self.key, False)
            return path

        def put(self, data: Any, filename: str, binary: bool = True) -> str:
            self._use_portable_key(filename)
            type(self).touched[self.key] = True
            return str(super().put(data, filename, binary=binary))

        def _use_portable_key(self, filename: str) -> None:
            if filename == CUDA_UTILS and self.key != cuda_utils_key():
                super().__init__(cuda_utils_key())

        def put_group(self, filename: str, group: dict[str, str]) -> Any:
            return super().put_group(filename, {name: name for name in sorted(group)})

        def get_group(self, filename: str) -> dict[str, str] | None:
            path = self.get_file(f"__grp__{filename}")
            if path is None:
                return None
            names = json.loads(Path(path).read_text(encoding="utf-8"))["child_paths"]
            return {name: self._make_path(name) for name in names}

    return RelocatableCache


@cache
def cuda_utils_key() -> str:
    """Return a key for `CUDA_UTILS` that does not depend on the driver's path."""
    import triton

    source = Path(triton.__file__).parent / "backends" / "nvidia" / "driver.c"
    digest = hashlib.sha256(source.read_bytes()).hexdigest() if source.is_file() else ""
    return f"cuda-utils-{digest[:24]}"


def _writable_manager(manager: Any, arguments: tuple[str, bool, bool]) -> Any:
    """Return a cache manager that can write: in a temporary folder, if not where Triton would."""
    try:
        return manager(*arguments)
    except OSError as error:
        folder = private_temporary_folder() / "triton"
        warn_once(
            "triton cache", f"Triton's cache cannot be written ({error}): {folder} is used instead"
        )
        set_cache_folder(str(folder))
        return manager(*arguments)


def launch_key(
    autotuner: Autotuner,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    replacements: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[Any, ...]:
    """Return a launch's key in `Autotuner.cache`, as `Autotuner.run` makes it.

    Args:
        autotuner: Triton's `Autotuner`.
        args: the launch's positional arguments.
        kwargs: its keyword arguments.
        replacements: values of key arguments that count in place of the launch's own.
    """
    names = autotuner.arg_names
    arguments = {**dict(zip(names, args, strict=False)), **kwargs}
    arguments = {name: value for name, value in arguments.items() if name in names}
    values = [
        replacements.get(name, arguments[name]) for name in autotuner.keys if name in arguments
    ]
    dtypes = [str(value.dtype) for value in arguments.values() if hasattr(value, "dtype")]
    return (*values, *dtypes)


def disk_cache_key(kernel: Any, key: Sequence[Any], configs: Iterable[TritonConfig]) -> str:
    """Return the name of the folder in which `Autotuner.check_disk_cache` keeps a launch's results.

    Args:
        kernel: a jit function, with or without decorators around it.
        key: the launch's key, as `Autotuner.run` makes it.
        configs: the `triton.Config`s that are measured, in order.

    Returns:
        An empty string for interpreted kernels, of which Triton keeps nothing.
    """
    while not hasattr(kernel, "cache_key") and hasattr(kernel, "fn"):
        kernel = kernel.fn
    if not hasattr(kernel, "cache_key"):
        return ""
    parts = [
        triton_key(),
        backend_hash(current_target()),
        kernel.cache_key,
        str(sorted(code_generation_variables().items())),
        str(tuple(key)),
        *map(str, configs),
    ]
    digest = hashlib.sha256("-".join(parts).encode()).digest()
    return base64.b32encode(digest).decode().rstrip("=")
