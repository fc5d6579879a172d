"""Manifest of a prewarmed folder: its target, its toolchain and the digests of its files.

    FOLDER/
      prewarmed.json      the manifest
      records/            a read-only store
      binaries/KEY/       compiled kernels under Triton's own cache keys

No file of the folder contains a path outside of it, so the folder may be moved and mounted
read-only.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationError

from ..errors import BundleError
from ..model.record import first_problem, version_of
from ..model.scenario import Device, canonical_json
from ..system.safe_files import sha256_of

__all__ = [
    "BINARIES",
    "MANIFEST",
    "RECORDS",
    "SCHEMA",
    "File",
    "Manifest",
    "PrewarmedKernel",
    "files_of",
    "find_differences",
    "is_prewarmed",
    "parse_manifest",
    "read_manifest",
    "verify_folder",
]

SCHEMA = 1
"""The version of the manifest that this code writes; it reads this one and every older one."""

MANIFEST = "prewarmed.json"
RECORDS = "records"
BINARIES = "binaries"

_MOST_BYTES = 64 << 20
"""Largest size of a manifest, enough for a folder of several hundred thousand files."""

_OTHER_KIND = "is neither a file nor a folder: remove it"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class File(_Model):
    """One file of the folder."""

    size: StrictInt = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class PrewarmedKernel(_Model):
    """Number of a kernel's scenarios and binaries in the folder."""

    name: str
    source: str
    scenarios: int
    """Scenarios with a winner, summed over all devices."""
    binaries: int = 0
    """Compiled kernels; configs that compile to the same code share one."""


class Manifest(_Model):
    """Description of a prewarmed folder."""

    schema_version: StrictInt = SCHEMA
    made_by: str
    """Version of dejavu-cache that made the folder."""
    triton: str
    wheel: str
    """Build of Triton that determines the keys of the binaries; see `compilation.wheel`."""
    abi: str
    """Suffix of extension modules, which names the Python that the host-side modules are for."""
    platform: str
    host_key: str
    """Part of Triton's keys of host-side modules that depends on the machine's installed tools."""
    devices: tuple[Device, ...]
    targets: tuple[str, ...]
    """`cuda:90`, `hip:gfx942`, …"""
    codegen: dict[str, str]
    """Code generator of each device, by the device's name."""
    kernels: tuple[PrewarmedKernel, ...]
    files: dict[str, File]
    """All files except the manifest, by their paths inside the folder."""

    @property
    def text(self) -> str:
        """Canonical JSON of the manifest."""
        return canonical_json(self) + "\n"

    @property
    def digest(self) -> str:
        """SHA-256 of the text, which identifies the folder's content."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def is_prewarmed(folder: Path) -> bool:
    """Return whether a folder was made by `dejavu-cache prewarm`; False if nobody may look."""
    try:
        return (folder / MANIFEST).is_file()
    except OSError:
        return False


def parse_manifest(text: bytes, where: str) -> Manifest:
    """Parse a manifest.

    Args:
        text: the content of its file.
        where: the file's name, for error messages.

    Raises:
        BundleError: a newer version wrote it, or it is damaged.
    """
    schema = version_of(text, "schema_version")
    if schema > SCHEMA:
        raise BundleError(
            f"{where} has schema version {schema}, and this version of dejavu-cache reads up to "
            f"{SCHEMA}: upgrade dejavu-cache"
        )
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        raise BundleError(f"{where} is damaged: {first_problem(error)}; get it again") from None


def read_manifest(folder: Path) -> Manifest:
    """Read a folder's manifest, without comparing it with the files.

    Raises:
        BundleError: there is none, or it cannot be read.
    """
    path = folder / MANIFEST
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise BundleError(f"{path} is damaged: {path.stat().st_size} bytes are no manifest")
        return parse_manifest(path.read_bytes(), str(path))
    except FileNotFoundError:
        raise BundleError(
            f"{folder} is no prewarmed folder: it has no {MANIFEST}; make one with prewarm"
        ) from None
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}") from None


def files_of(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield all files of a folder except its manifest, with their paths inside it, sorted.

    Raises:
        BundleError: the folder contains something that is neither a file nor a folder.
    """
    files, others = _list_entries(folder)
    for path in others:
        raise BundleError(f"{path} {_OTHER_KIND}")
    yield from files.items()


def _list_entries(folder: Path) -> tuple[dict[str, Path], list[Path]]:
    """Return the files by their paths inside a folder, sorted, and what is no file or folder.

    The manifest is left out of the files. Links are not followed.
    """
    files, others = [], []
    for root, folders, names in os.walk(folder):
        for name in [*folders, *names]:
            path = Path(root, name)
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                others.append(path)
            elif not path.is_dir():
                files.append(path)
    by_name = {path.relative_to(folder).as_posix(): path for path in sorted(files)}
    by_name.pop(MANIFEST, None)
    return by_name, others


def verify_folder(folder: Path) -> Manifest:
    """Compare all files of a folder with its manifest, and return the manifest.

    Raises:
        BundleError: a file is missing, altered, or not in the manifest.
    """
    manifest = read_manifest(folder)
    for inside, problem in find_differences(folder, manifest):
        raise BundleError(f"{folder / inside} {problem}")
    return manifest


def find_differences(folder: Path, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Yield what in a folder is not as its manifest says.

    Yields:
        The path inside the folder, and what is wrong with it and how to repair that.
    """
    files, others = _list_entries(folder)
    other_names = [path.relative_to(folder).as_posix() for path in others]
    for inside in other_names:
        yield inside, _OTHER_KIND
    for inside in sorted(manifest.files.keys() - files.keys() - set(other_names)):
        yield inside, "is missing: make the folder again, or extract it again"
    for inside in sorted(files.keys() - manifest.files.keys()):
        yield inside, "is not in the manifest: remove it, or make the folder again"
    for inside in sorted(files.keys() & manifest.files.keys()):
        try:
            described = describe_file(files[inside])
        except BundleError as error:
            yield inside, str(error).removeprefix(f"{files[inside]} ")
            continue
        if described != manifest.files[inside]:
            yield (
                inside,
                "was altered: its digest is not the manifest's; make the folder again",
            )


def describe_file(path: Path) -> File:
    """Return a file's size and digest.

    Raises:
        BundleError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            digest = sha256_of(file)
            return File(size=file.tell(), sha256=digest)
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}") from None
