"""Manifest of a prewarmed folder: its target, its toolchain and the digests of its files.

    FOLDER/
      prewarmed.json      the manifest
      records/            a read-only store
      binaries/KEY/       compiled kernels under Triton's own cache keys

No file of the folder contains a path outside of it, so the folder may be moved and mounted
read-only.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pydantic import Field, StrictInt, ValidationError

from ..errors import PrewarmError
from ..model.record import first_problem, version_of
from ..model.scenario import Device, FrozenModel, canonical_json
from ..system.safe_files import open_to_read, read_file, sha256_of

SCHEMA = 1
"""The version of the manifest that this code writes; it reads this one and every older one."""

MANIFEST = "prewarmed.json"
"""Name of the file that makes a folder a prewarmed one."""

RECORDS = "records"
BINARIES = "binaries"


class File(FrozenModel):
    """One file of the folder."""

    size: StrictInt = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class PrewarmedKernel(FrozenModel):
    """Number of a kernel's scenarios and binaries in the folder."""

    name: str
    source: str
    scenarios: int
    """Scenarios with a winner, summed over all devices."""
    binaries: int = 0
    """Compiled kernels; configs that compile to the same code share one."""


class Manifest(FrozenModel):
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
    """Platform's part of Triton's keys of host-side modules; earlier, also the builder's tools'."""
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


def read_manifest(folder: Path) -> Manifest:
    """Read a folder's manifest, without comparing it with the files.

    Raises:
        PrewarmError: there is none, it is damaged, or a newer version wrote it.
    """
    path = folder / MANIFEST
    try:
        text = read_file(path)
    except OSError as error:
        raise PrewarmError(f"{path} cannot be read: {error.strerror}") from None
    schema = version_of(text, "schema_version")
    if schema > SCHEMA:
        raise PrewarmError(
            f"{path} has schema version {schema}, and this version of dejavu-cache reads up to "
            f"{SCHEMA}: upgrade dejavu-cache"
        )
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        raise PrewarmError(f"{path} is damaged: {first_problem(error)}") from None


def files_of(folder: Path) -> dict[str, Path]:
    """Return everything in a folder but its manifest and folders, by the paths inside, sorted.

    Links are not followed.
    """
    files = {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or not path.is_dir()
    }
    files.pop(MANIFEST, None)
    return files


def find_differences(folder: Path, manifest: Manifest) -> Iterator[str]:
    """Yield what in a folder is not as its manifest says, each with its path inside the folder."""
    files = files_of(folder)
    for inside in sorted(files.keys() | manifest.files.keys()):
        if inside not in files:
            yield f"{inside} is missing"
        elif inside not in manifest.files:
            yield f"{inside} is not in the manifest"
        elif describe_file(files[inside]) != manifest.files[inside]:
            yield f"{inside} was altered: its digest is not the manifest's"


def describe_file(path: Path) -> File | None:
    """Return a file's size and digest; None if it is no regular file or cannot be read."""
    with suppress(OSError), open_to_read(path) as file:
        return File(sha256=sha256_of(file), size=file.tell())
    return None
