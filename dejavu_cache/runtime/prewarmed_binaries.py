"""Load binaries from the prewarmed folders among a process's stores."""

from __future__ import annotations

import sysconfig
from functools import cache
from pathlib import Path

from ..errors import DejavuError
from ..notices import warn_once
from ..settings import current_settings
from ..stores import local_folders
from ..stores.manifest import BINARIES, Manifest, is_prewarmed, read_manifest
from ..triton_internals.cache_managers import serve_binaries

__all__ = ["use_prewarmed_binaries"]


@cache
def use_prewarmed_binaries() -> None:
    """Put the binaries of the prewarmed folders in `DEJAVU_CACHE_URL` before Triton's cache.

    It is called when a kernel is decorated, and works once per process. A folder that does not fit,
    or a broken setting, costs compilations; the first launch reports a broken setting.
    """
    try:
        folders = [
            folder for folder in local_folders(current_settings().url) if is_prewarmed(folder)
        ]
    except DejavuError:
        return
    loadable = [
        (folder, manifest) for folder in folders if (manifest := _loadable_manifest(folder))
    ]
    if loadable:
        serve_binaries([folder / BINARIES for folder, _ in loadable], loadable[0][1].host_key)


def _loadable_manifest(folder: Path) -> Manifest | None:
    """Return a folder's manifest, or None if this process cannot load its binaries."""
    import triton

    try:
        manifest = read_manifest(folder)
    except DejavuError as error:
        warn_once(f"prewarmed {folder}", f"its binaries are not used: {error}")
        return None
    ours = (
        triton.__version__,
        str(sysconfig.get_config_var("EXT_SUFFIX")),
        sysconfig.get_platform(),
    )
    theirs = (manifest.triton, manifest.abi, manifest.platform)
    if ours != theirs:
        warn_once(
            f"prewarmed {folder}",
            f"{folder} holds binaries for Triton {' '.join(theirs)}, and this is {' '.join(ours)}: "
            "kernels will be compiled; prewarm with what the program runs on",
        )
        return None
    return manifest
