"""A bundle: a tar of a prewarmed folder under zstd, the same bytes for the same folder, with a seal at its end.

The seal is a frame that zstd skips, so that `tar --zstd -xf` works too: it holds the SHA-256 of all bytes before it.
Inside, the manifest comes first, and every other file is as it says.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
import struct
import tarfile
import uuid
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from ...errors import BundleError
from ...stores.manifest import MANIFEST, Manifest, checked, parse_manifest

__all__ = ["Digests", "create", "extract", "read_bundle"]

_LEVEL = 12
"""Of zstd: higher ones take several times as long for some hundredths."""

_SKIPPED = 0x184D2A50
_SEAL = struct.Struct("<II32s")
_BLOCK = 1 << 20


class Digests(NamedTuple):
    """The digests of a bundle.

    Attributes:
        blob: of the file. tar: of what is in it, uncompressed.
    """

    blob: str
    tar: str
    size: int


def create(folder: Path, file: Path) -> tuple[Manifest, Digests]:
    """Writes a prewarmed folder as a bundle; the file is there when it is whole, or not at all.

    Raises:
        BundleError: the folder is no prewarmed one, or not as its manifest says, or the file cannot be written.
    """
    manifest = checked(folder)
    beside = file.with_name(f".{file.name}.{uuid.uuid4().hex[:8]}")
    try:
        file.absolute().parent.mkdir(parents=True, exist_ok=True)
        with beside.open("wb") as raw:
            digests = write(folder, manifest, raw)
            raw.flush()
            os.fsync(raw.fileno())
        beside.replace(file)
    except OSError as error:
        raise BundleError(f"{file} cannot be written: {error.strerror or error}") from error
    finally:
        beside.unlink(missing_ok=True)
    return manifest, digests


def write(folder: Path, manifest: Manifest, raw: IO[bytes]) -> Digests:
    """Writes the bundle of a folder that was checked."""
    import zstandard

    sealed: Any = _Hashing(raw)
    compressor = zstandard.ZstdCompressor(
        level=_LEVEL, write_checksum=True, write_content_size=False
    )
    with compressor.stream_writer(sealed, closefd=False) as inner:
        plain = _Hashing(inner)
        with tarfile.open(fileobj=plain, mode="w|", format=tarfile.PAX_FORMAT) as tar:
            _add(tar, MANIFEST, io.BytesIO(manifest.text.encode()), len(manifest.text.encode()))
            for inside in sorted(manifest.files):
                with (folder / inside).open("rb") as file:
                    _add(tar, inside, file, manifest.files[inside].size)
    seal = _SEAL.pack(_SKIPPED, 32, sealed.hash.digest())
    sealed.write(seal)
    return Digests(sealed.hash.hexdigest(), plain.hash.hexdigest(), sealed.size)


def _add(tar: tarfile.TarFile, name: str, file: IO[bytes], size: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = size, 0o644, 0
    tar.addfile(entry, file)


class _Hashing(io.RawIOBase):
    """Passes bytes on, and knows their digest."""

    def __init__(self, out: Any) -> None:
        self._out = out
        self.hash = hashlib.sha256()
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.hash.update(data)
        self.size += len(data)
        self._out.write(data)
        return len(data)


def read_bundle(file: Path) -> Manifest:
    """The manifest of a bundle, once all of the bundle was found to be as it was written.

    Raises:
        BundleError: it is cut, altered, newer than this version, or no bundle.
    """
    found: list[Manifest] = []
    for _ in _members(file, found):
        pass
    return found[0]


def extract(file: Path, out: Path) -> Manifest:
    """Unpacks a bundle into a new folder, which is there when all of it was checked, or not at all.

    Raises:
        BundleError: as for `read_bundle`, or the folder is there already or cannot be written.
    """
    out = out.absolute()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BundleError(f"{out} is there already: name a new folder, or remove it")
    work = out.with_name(f".{out.name}.{uuid.uuid4().hex[:8]}")
    found: list[Manifest] = []
    try:
        work.mkdir(parents=True)
        for name, data in _members(file, found):
            path = work / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as kept:
                shutil.copyfileobj(data, kept, _BLOCK)
        (work / MANIFEST).write_text(found[0].text, encoding="utf-8")
        with contextlib.suppress(FileNotFoundError):
            out.rmdir()
        work.rename(out)
    except OSError as error:
        raise BundleError(f"{out} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return found[0]


def _members(file: Path, found: list[Manifest]) -> Iterator[tuple[str, IO[bytes]]]:
    """The files of a bundle as they come, each checked once it was read; the manifest is put into `found` first."""
    import zstandard

    _check_seal(file)
    try:
        with file.open("rb") as raw:
            body: Any = _Limited(raw, file.stat().st_size - _SEAL.size)
            with (
                zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(body) as plain,
                tarfile.open(fileobj=plain, mode="r|") as tar,
            ):
                yield from _checked_members(file, tar, found)
    except (tarfile.TarError, zstandard.ZstdError, EOFError) as error:
        raise BundleError(f"{file} is no bundle: {error}") from None


def _checked_members(
    file: Path, tar: tarfile.TarFile, found: list[Manifest]
) -> Iterator[tuple[str, IO[bytes]]]:
    seen: set[str] = set()
    for entry in tar:
        name = entry.name
        if not entry.isreg() or name in seen or not _is_inside(name):
            raise BundleError(
                f"{file} has an entry that no bundle has: {name!r}; nothing was unpacked"
            )
        seen.add(name)
        data = tar.extractfile(entry)
        assert data is not None
        if not found:
            if name != MANIFEST:
                raise BundleError(f"{file} is no bundle: it does not begin with {MANIFEST}")
            found.append(parse_manifest(data.read(64 << 20), f"{file}: {MANIFEST}"))
            continue
        told = found[0].files.get(name)
        if told is None or told.size != entry.size:
            raise BundleError(f"{file}: {name} is not what the manifest says; nothing was unpacked")
        reader = _Reading(data)
        yield name, reader  # type: ignore[misc]
        while reader.read(_BLOCK):
            pass
        if reader.hash.hexdigest() != told.sha256:
            raise BundleError(
                f"{file}: {name} was altered: its digest is not the manifest's; nothing was unpacked"
            )
    if not found:
        raise BundleError(f"{file} is no bundle: it is empty")
    missing = sorted(set(found[0].files) - (seen - {MANIFEST}))
    if missing:
        raise BundleError(f"{file} is cut: {missing[0]} is missing; get it again")


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return (
        bool(name)
        and not path.is_absolute()
        and ".." not in path.parts
        and path.as_posix() == name
        and "\\" not in name
    )


def _check_seal(file: Path) -> None:
    """Refuses a bundle of which any bit is not as it was written, before anything of it is read."""
    try:
        size = file.stat().st_size
        with file.open("rb") as raw:
            digest, left = hashlib.sha256(), max(size - _SEAL.size, 0)
            while left:
                block = raw.read(min(left, _BLOCK))
                if not block:
                    break
                digest.update(block)
                left -= len(block)
            seal = raw.read(_SEAL.size)
    except OSError as error:
        raise BundleError(f"{file} cannot be read: {error.strerror or error}") from None
    if len(seal) != _SEAL.size or _SEAL.unpack(seal)[:2] != (_SKIPPED, 32):
        raise BundleError(f"{file} is cut, or no bundle: it does not end with a seal; get it again")
    if _SEAL.unpack(seal)[2] != digest.digest():
        raise BundleError(f"{file} was altered: its digest is not its seal's; get it again")


class _Limited(io.RawIOBase):
    """The first bytes of a file."""

    def __init__(self, raw: IO[bytes], size: int) -> None:
        self._raw, self._left = raw, size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._raw.read(min(len(buffer), self._left))
        buffer[: len(data)] = data
        self._left -= len(data)
        return len(data)


class _Reading:
    """Reads on, and knows the digest of what was read."""

    def __init__(self, data: IO[bytes]) -> None:
        self._data = data
        self.hash = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        block = self._data.read(size)
        self.hash.update(block)
        return block
