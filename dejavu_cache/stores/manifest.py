"""What a prewarmed folder says of itself: what it was made for, by what, and the digest of every file in it.

    FOLDER/
      prewarmed.json      the manifest
      records/            a store, read-only
      binaries/KEY/       what Triton would have compiled, by its own keys

The folder holds no path outside itself, so it may be moved, mounted read-only and read by anybody.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationError

from ..errors import BundleError
from ..model.scenario import Device, canonical_json

__all__ = [
    "BINARIES",
    "MANIFEST",
    "RECORDS",
    "SCHEMA",
    "File",
    "Manifest",
    "PrewarmedKernel",
    "checked",
    "files_of",
    "is_prewarmed",
    "parse_manifest",
    "read_manifest",
]

SCHEMA = 1
"""The version of the manifest that this code writes; it reads this one and every older one."""

MANIFEST = "prewarmed.json"
RECORDS = "records"
BINARIES = "binaries"

_MOST_BYTES = 64 << 20
"""Of a manifest: a million files."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class File(_Model):
    """One file of the folder."""

    size: StrictInt = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class PrewarmedKernel(_Model):
    """What is there of one kernel."""

    name: str
    source: str
    scenarios: int
    """Scenarios with a winner, over all devices."""
    binaries: int = 0
    """As many as were made: configs that differ in what is not compiled in share one."""


class Manifest(_Model):
    """A prewarmed folder's own account."""

    schema_version: StrictInt = SCHEMA
    made_by: str
    """The version of dejavu-cache."""
    triton: str
    wheel: str
    """The build of Triton whose keys the binaries have: see `dejavu_cache.triton_internals.compilation.wheel`."""
    abi: str
    """The Python whose host-side modules these are, as the end of their names says."""
    platform: str
    host_key: str
    """What Triton's keys of host-side modules say of a machine: another thing where one tool less is installed."""
    devices: tuple[Device, ...]
    targets: tuple[str, ...]
    """`cuda:90`, `hip:gfx942`, …"""
    codegen: dict[str, str]
    """The code generator by device."""
    kernels: tuple[PrewarmedKernel, ...]
    files: dict[str, File]
    """Every file but this one, by its path inside the folder."""

    @property
    def text(self) -> str:
        """The manifest as it is written down; the same for the same content."""
        return canonical_json(self) + "\n"

    @property
    def digest(self) -> str:
        """SHA-256 of the text: the identity of all that the folder holds."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def is_prewarmed(folder: Path) -> bool:
    """Whether a folder was made by `dejavu-cache prewarm`."""
    return (folder / MANIFEST).is_file()


def parse_manifest(text: bytes, where: str) -> Manifest:
    """Reads a manifest.

    Raises:
        BundleError: a newer version wrote it, or it is damaged.
    """
    try:
        found = _Version.model_validate_json(text).schema_version
        if found > SCHEMA:
            raise BundleError(
                f"{where} has schema version {found}, and this version of dejavu-cache reads up to {SCHEMA}: "
                "upgrade dejavu-cache"
            )
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        raise BundleError(
            f"{where} is damaged: {'.'.join(map(str, first['loc']))}: {first['msg']}; get it again"
        ) from None


class _Version(BaseModel):
    schema_version: StrictInt


def read_manifest(folder: Path) -> Manifest:
    """A folder's manifest.

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
    """All files of a folder but its manifest, by their paths inside it, in order.

    Raises:
        BundleError: there is something that is neither a file nor a folder.
    """
    found = []
    for root, folders, names in os.walk(folder):
        for name in [*folders, *names]:
            path = Path(root, name)
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise BundleError(f"{path} is neither a file nor a folder: remove it")
        found += [Path(root, name) for name in names]
    for path in sorted(found):
        inside = path.relative_to(folder).as_posix()
        if inside != MANIFEST:
            yield inside, path


def checked(folder: Path) -> Manifest:
    """The manifest of a folder in which every file is what the manifest says, and no other is.

    Raises:
        BundleError: one is missing, altered, or not mentioned.
    """
    manifest = read_manifest(folder)
    found = dict(files_of(folder))
    for inside in sorted(manifest.files.keys() - found.keys()):
        raise BundleError(
            f"{folder / inside} is missing: make the folder again, or extract it again"
        )
    for inside in sorted(found.keys() - manifest.files.keys()):
        raise BundleError(
            f"{folder / inside} is not in the manifest: remove it, or make the folder again"
        )
    for inside, path in found.items():
        if described(path) != manifest.files[inside]:
            raise BundleError(
                f"{path} was altered: its digest is not the manifest's; make the folder again"
            )
    return manifest


def described(path: Path) -> File:
    """A file's size and digest."""
    try:
        with path.open("rb") as file:
            digest = hashlib.sha256()
            while block := file.read(1 << 20):
                digest.update(block)
            return File(size=file.tell(), sha256=digest.hexdigest())
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}") from None
