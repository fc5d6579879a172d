"""Running from a prewarmed folder: Triton finds its binaries there, wherever the folder lies and whoever may write it.

Triton's own cache keeps absolute paths and wants to be written to. Before it stands a cache manager that knows the
folder by Triton's keys alone; what is not in it goes where it went before, and to a temporary folder where the user's
own cannot be written.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ..notices import warn_once
from .hooks import set_cache_folder, set_platform_key, wrap_cache_manager

__all__ = [
    "CUDA_UTILS",
    "cuda_utils_key",
    "relocatable_cache",
    "reporting_cache",
    "sealed_cache",
    "serve_binaries",
]

CUDA_UTILS = f"cuda_utils{sysconfig.get_config_var('EXT_SUFFIX')}"
"""Triton's module that speaks to the driver. From 3.8 on its key has the place of the machine's driver in it."""


def serve_binaries(folders: Sequence[Path], host_key: str) -> None:
    """Put folders of binaries before Triton's cache, for the rest of the process.

    Args:
        folders: as in `sealed_cache`.
        host_key: the builder's platform key, as `hooks.set_platform_key` takes it.
    """
    wrap_cache_manager(lambda manager: sealed_cache(folders, manager))
    set_platform_key(host_key)


def sealed_cache(folders: Sequence[Path], otherwise: Any = None) -> Any:
    """A class for Triton's `knobs.cache.manager_class` that reads folders and writes elsewhere.

    Args:
        folders: folders of binaries by Triton's keys, in the order in which they are asked.
        otherwise: the class that writes, and reads what is not in the folders; Triton's own if None.
    """
    from triton.runtime.cache import CacheManager, FileCacheManager

    beside = otherwise or FileCacheManager

    class SealedCache(CacheManager):  # type: ignore[misc]
        def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
            self._key = key
            self._kind = {
                name: True for name, set_ in (("override", override), ("dump", dump)) if set_
            }
            self._sealed = [] if self._kind else [folder / key for folder in folders]

        @property
        def _beside(self) -> Any:
            if not hasattr(self, "_made"):
                self._made = _writable(beside, self._key, self._kind)
            return self._made

        def get_file(self, filename: str) -> str | None:
            for place in self._sealed:
                if (place / filename).is_file():
                    return str(place / filename)
            if self._sealed and filename == CUDA_UTILS:
                for folder in folders:
                    if (folder / cuda_utils_key() / filename).is_file():
                        return str(folder / cuda_utils_key() / filename)
            kept: str | None = self._beside.get_file(filename)
            return kept

        def get_group(self, filename: str) -> dict[str, str] | None:
            for place in self._sealed:
                try:
                    names = json.loads((place / f"__grp__{filename}").read_bytes())["child_paths"]
                except (OSError, ValueError, KeyError):
                    continue
                return {name: str(place / name) for name in names if (place / name).is_file()}
            kept: dict[str, str] | None = self._beside.get_group(filename)
            return kept

        def put(self, data: Any, filename: str, binary: bool = True) -> str:
            return str(self._beside.put(data, filename, binary=binary))

        def put_group(self, filename: str, group: dict[str, str]) -> Any:
            return self._beside.put_group(filename, group)

    return SealedCache


def relocatable_cache() -> Any:
    """Return a cache manager class whose files hold no paths, and which notes the keys that it is asked for."""
    from triton.runtime.cache import FileCacheManager

    class RelocatableCache(FileCacheManager):  # type: ignore[misc]
        touched: dict[str, bool]
        """The keys that were asked for, and whether something was put there."""

        def get_file(self, filename: str) -> str | None:
            self._settle(filename)
            kept: str | None = super().get_file(filename)
            if kept is not None:
                type(self).touched.setdefault(self.key, False)
            return kept

        def put(self, data: Any, filename: str, binary: bool = True) -> str:
            self._settle(filename)
            type(self).touched[self.key] = True
            return str(super().put(data, filename, binary=binary))

        def _settle(self, filename: str) -> None:
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


def reporting_cache(inner: Any, report: Callable[[str], None]) -> Any:
    """Return a cache manager class that reports the host modules that Triton builds.

    Args:
        inner: the class that keeps the files.
        report: is called with the name of each host module that is put into the cache.
    """
    suffix = sysconfig.get_config_var("EXT_SUFFIX")

    class ReportingCache(inner):  # type: ignore[misc]
        def put(self, data: Any, filename: str, binary: bool = True) -> str:
            if filename.endswith(suffix):
                report(filename)
            return str(super().put(data, filename, binary=binary))

    return ReportingCache


@cache
def cuda_utils_key() -> str:
    """The key of Triton's module that speaks to the CUDA driver, wherever on a machine the driver lies."""
    import triton

    source = Path(triton.__file__).parent / "backends" / "nvidia" / "driver.c"
    digest = hashlib.sha256(source.read_bytes()).hexdigest() if source.is_file() else ""
    return f"cuda-utils-{digest[:24]}"


def _writable(manager: Any, key: str, kind: dict[str, bool]) -> Any:
    """A manager that can be written to: in a temporary folder, if not where Triton would."""
    try:
        return manager(key, **kind)
    except OSError as error:
        place = _temporary()
        warn_once(
            "triton cache", f"Triton's cache cannot be written ({error}): {place} is used instead"
        )
        set_cache_folder(str(place))
        return manager(key, **kind)


@cache
def _temporary() -> Path:
    """A folder that nobody else can write to, since what lies in it is loaded; one for all of a user's processes."""
    wanted = Path(tempfile.gettempdir(), f"dejavu-cache-{os.getuid()}")
    try:
        wanted.mkdir(mode=0o700, exist_ok=True)
        found = wanted.lstat()
        if (
            stat.S_ISDIR(found.st_mode)
            and found.st_uid == os.getuid()
            and not stat.S_IMODE(found.st_mode) & 0o077
        ):
            return wanted
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="dejavu-cache-"))
