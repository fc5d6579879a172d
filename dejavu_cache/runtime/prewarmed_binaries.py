"""Load binaries from the prewarmed folders that `DEJAVU_CACHE_URL` names as such.

Binaries are code. A folder is trusted if nobody but this user and root can change it, and a file in
it is loaded only if its content is what the folder's manifest says.
"""

import os
import stat
import sysconfig
from collections.abc import Mapping, Sequence
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

from ..errors import DejavuError, PrewarmError
from ..settings import Mode, current_settings
from ..stores import prewarmed_folders, shipped_stores
from ..stores.manifest import BINARIES, MANIFEST, Manifest, describe_file, read_manifest
from ..system.notices import warn_once
from ..triton_internals import environment
from ..triton_internals.hooks import add_compilation_listener, serve_binaries


class SealedBinaries:
    """The binaries of one prewarmed folder, each compared with the manifest before it is used.

    Args:
        folder: the folder, without symbolic links in its path.

    Attributes:
        refused: names of files that were not as the manifest says, without their suffixes.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        """Remember the digests; no binary is read yet."""
        self.folder, self.manifest = folder, manifest
        self.refused: set[str] = set()
        self._checked: dict[str, Path | None] = {}

    def find(self, key: str, name: str) -> Path | None:
        """Return the path of a file under a key of Triton's cache.

        None stands for none, or for one that must not be loaded.
        """
        inside = f"{BINARIES}/{key}/{name}"
        if inside not in self.manifest.files or "/" in name or name == "..":
            return None
        if inside not in self._checked:
            self._checked[inside] = self._check(inside)
        return self._checked[inside]

    def _check(self, inside: str) -> Path | None:
        path = self.folder / inside
        problem = problem_of(path.parent) or problem_of(path)
        if problem is None:
            if describe_file(path) == self.manifest.files[inside]:
                return path
            problem = f"{path} was altered: its digest is not the manifest's; make the folder again"
        self.refused.add(path.stem.removeprefix("__grp__"))
        warn_once(f"binary {path}", f"{problem}; it is compiled instead")
        return None


@cache
def use_prewarmed_binaries() -> bool:
    """Put the binaries of the prewarmed folders in `DEJAVU_CACHE_URL` before Triton's cache.

    Returns whether there is such a folder that fits.

    The digest that the keys of all binaries begin with is computed from here on. It is called when
    a kernel is decorated, and works once per process. A folder that does not fit, or a broken
    setting, costs compilations; the first launch reports a broken setting.
    """
    try:
        folders = prewarmed_folders(current_settings().url)
    except DejavuError:
        return False
    prepare_launches()
    loadable = []
    # From here on the path has no link that could be pointed elsewhere after the checks.
    for folder in map(Path, map(os.path.realpath, folders)):
        try:
            loadable.append(SealedBinaries(folder, loadable_manifest(folder)))
        except DejavuError as error:
            warn_once(
                f"prewarmed {folder}",
                f"the binaries of {folder} are not used, and kernels will be compiled: {error}",
            )
    if loadable:
        serve_binaries(loadable, loadable[0].manifest.host_key)
        add_compilation_listener(partial(_note_compiled, loadable))
    return bool(loadable)


def prepare_launches() -> None:
    """Begin what the first launch needs, where kernels are tuned on a GPU and not by Triton."""
    is_off = current_settings().mode is Mode.OFF or environment.is_interpreting()
    if not is_off and environment.shows_gpu():
        environment.begin_digest(_read_ahead)


def _read_ahead() -> None:
    """Find the records that packages ship, and import what predicts."""
    if current_settings().shipped:
        shipped_stores()
    import_module("..prediction.slowdown_model", __package__)


COMPILED: list[str] = []
"""Kernels that were compiled beside prewarmed folders for this GPU, and nothing has said why."""


def _note_compiled(
    folders: Sequence[SealedBinaries],
    *,
    src: Any,
    metadata: Mapping[str, Any],
    cache_hit: bool,
    **_: Any,
) -> None:
    target, name = "{0.backend}:{0.arch}".format(metadata["target"]), getattr(src, "name", "?")
    if not any(target in binaries.manifest.targets for binaries in folders):
        for binaries in folders:
            names = ", ".join(device.name for device in binaries.manifest.devices)
            warn_once(
                f"prewarmed {binaries.folder}",
                f"the binaries of {binaries.folder} are not used, and kernels will be compiled: "
                f"they are for {names}, and this GPU is {target}; prewarm for it by --device",
            )
    elif not cache_hit and not any(name in binaries.refused for binaries in folders):
        COMPILED.append(name)


def loadable_manifest(folder: Path) -> Manifest:
    """Return the manifest of a folder whose binaries this process may load.

    Raises:
        PrewarmError: it is not there, others may write to it, its manifest is damaged, or it was
            made for another Triton or Python.
    """
    problem = problem_of_folder(folder)
    if problem is not None:
        raise PrewarmError(problem)
    manifest = read_manifest(folder)
    ours = (
        str(environment.triton_version()),
        str(sysconfig.get_config_var("EXT_SUFFIX")),
        sysconfig.get_platform(),
    )
    theirs = (manifest.triton, manifest.abi, manifest.platform)
    if ours != theirs:
        raise PrewarmError(
            f"they are for Triton {' '.join(theirs)}, and this is {' '.join(ours)}: prewarm with "
            "what the program runs on"
        )
    return manifest


def problem_of_folder(folder: Path) -> str | None:
    """Return why the binaries of a prewarmed folder must not be loaded; None if they may.

    The folder, its parents, its manifest and its folder of binaries are looked at.
    """
    paths = (folder / MANIFEST, folder / BINARIES, folder, *folder.parents)
    problems = (problem_of(path, may_be_sticky=path in folder.parents) for path in paths)
    return next(filter(None, problems), None)


def problem_of(path: Path, *, may_be_sticky: bool = False) -> str | None:
    """Return why a file or folder is not there, or can be changed by others; None if all is well.

    In a sticky folder, which may do, users cannot rename what belongs to others.
    """
    try:
        status = path.lstat()
    except OSError as error:
        return f"{path}: {error.strerror}; mount the folder, let this user read it or make it again"
    is_plain = stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)
    is_sticky = may_be_sticky and status.st_mode & stat.S_ISVTX
    is_private = is_sticky or not status.st_mode & 0o022
    if is_plain and is_private and status.st_uid in (0, os.geteuid()):
        return None
    return (
        f"{path} is a link, another user's, or one that others may write, and binaries are code: "
        f"replace it by a file or folder, chown it to this user, or chmod go-w {path}"
    )
