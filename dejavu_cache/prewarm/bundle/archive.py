"""Write and read bundles: reproducible tar files of prewarmed folders under zstd, with a seal.

The seal at the end is a frame with the SHA-256 of all bytes before it. zstd skips it, so that
`tar --zstd -xf` works too. The manifest is the first file, and describes all others.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import stat
import struct
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from ...errors import BundleError
from ...stores.manifest import (
    BINARIES,
    MANIFEST,
    RECORDS,
    Manifest,
    parse_manifest,
    verify_folder,
)
from ...system.safe_files import open_replacement
from ..new_folder import new_folder

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Digests", "HashingWriter", "add_file", "create", "extract", "read_bundle"]

_LEVEL = 12
"""Compression level of zstd; higher ones take several times as long and save a few percent."""

_SKIPPED = 0x184D2A50
_SEAL = struct.Struct("<II32s")
_BLOCK = 1 << 20

MAX_FILES = 200_000
"""Files in a bundle."""

MAX_BYTES = 64 << 30
"""Bytes in a bundle's files."""

MAX_EXPANSION = 100
"""How many times larger than the bundle its files may be; compiled kernels reach about 10."""

_SLACK = 64 << 20
"""Bytes that the files may have whatever the bundle's size, and the limit of a manifest."""

_MAX_HEADER = 64 << 10
"""Bytes of a tar header that holds a long name."""


class Digests(NamedTuple):
    """The digests of a bundle.

    Attributes:
        blob: SHA-256 of the file.
        tar: SHA-256 of the uncompressed tar.
        size: size of the file in bytes.
    """

    blob: str
    tar: str
    size: int


def create(folder: Path, file: Path) -> tuple[Manifest, Digests]:
    """Write a prewarmed folder as a bundle; on failure, no file is left.

    Raises:
        BundleError: the folder is not prewarmed, differs from its manifest, or the file cannot be
            written.
    """
    if file.is_symlink() or (file.exists() and not file.is_file()):
        raise BundleError(
            f"{file} is there already and is no file: name one, which need not exist yet"
        )
    manifest = verify_folder(folder)
    try:
        with open_replacement(file) as raw:
            digests = write(folder, manifest, raw)
    except OSError as error:
        raise BundleError(f"{file} cannot be written: {error.strerror or error}") from error
    return manifest, digests


def write(folder: Path, manifest: Manifest, raw: IO[bytes]) -> Digests:
    """Write the bundle of a folder that was compared with its manifest."""
    import zstandard

    sealed: Any = HashingWriter(raw)
    compressor = zstandard.ZstdCompressor(
        level=_LEVEL, write_checksum=True, write_content_size=False
    )
    with compressor.stream_writer(sealed, closefd=False) as inner:
        plain = HashingWriter(inner)
        with tarfile.open(fileobj=plain, mode="w|", format=tarfile.PAX_FORMAT) as tar:
            add_file(tar, MANIFEST, io.BytesIO(manifest.text.encode()), len(manifest.text.encode()))
            for inside in sorted(manifest.files):
                size = manifest.files[inside].size
                with (folder / inside).open("rb") as file:
                    reader: Any = _HashingReader(folder / inside, file, size)
                    add_file(tar, inside, reader, size)
                if reader.hash.hexdigest() != manifest.files[inside].sha256:
                    raise BundleError(f"{folder / inside} was changed while it was packed")
    seal = _SEAL.pack(_SKIPPED, 32, sealed.hash.digest())
    sealed.write(seal)
    return Digests(sealed.hash.hexdigest(), plain.hash.hexdigest(), sealed.size)


def add_file(tar: tarfile.TarFile, name: str, file: IO[bytes], size: int) -> None:
    """Add a file to an archive, with nothing that depends on where or when it was made."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = size, 0o644, 0
    tar.addfile(entry, file)


class HashingWriter(io.RawIOBase):
    """Writes bytes to a stream and computes their digest."""

    def __init__(self, out: Any) -> None:
        """Wrap the stream to write to."""
        self._out = out
        self.hash = hashlib.sha256()
        self.size = 0

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any) -> int:
        """Write bytes, add them to the digest, and return their number."""
        self.hash.update(data)
        self.size += len(data)
        self._out.write(data)
        return len(data)


def read_bundle(file: Path, blob: str | None = None) -> Manifest:
    """Check a whole bundle and return its manifest.

    Args:
        file: the bundle.
        blob: SHA-256 that the file must have, if it is known.

    Raises:
        BundleError: it is cut, altered, newer than this version, or no bundle.
    """
    manifest, *_ = [member.manifest for member in _members(file, blob)]
    return manifest


def extract(file: Path, out: Path, blob: str | None = None) -> Manifest:
    """Unpack a bundle into a new folder, which appears only once every file was verified.

    Raises:
        BundleError: as for `read_bundle`, or the folder is there already or cannot be written.
    """
    with new_folder(out) as work:
        for member in _members(file, blob):
            path = work / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as target:
                shutil.copyfileobj(member.data, target, _BLOCK)
    return member.manifest


class _Member(NamedTuple):
    """A file of a bundle, which is verified once it was read; the first one is the manifest."""

    manifest: Manifest
    name: str
    data: IO[bytes]


def _members(file: Path, blob: str | None) -> Iterator[_Member]:
    """Check a bundle's seal, then yield its files in order, one at least.

    The file is opened once, and what was yielded is what the seal was checked of: somebody may
    exchange or change it meanwhile.
    """
    import zstandard

    with _open_bundle(file) as raw:
        size = os.fstat(raw.fileno()).st_size
        sealed = _check_seal(file, raw, size, blob)
        raw.seek(0)
        body: Any = _HashingReader(file, raw, size - _SEAL.size)
        try:
            decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 27)
            with (
                decompressor.stream_reader(body) as plain,
                _BundleTar.open(fileobj=plain, mode="r|", tarinfo=_BundleEntry) as tar,
            ):
                yield from _checked_members(file, tar, size)
        except (tarfile.TarError, zstandard.ZstdError, EOFError, ValueError) as error:
            raise BundleError(f"{file} is no bundle: {error}") from None
        if body.digest_of_all() != sealed:
            raise BundleError(f"{file} was changed while it was read; nothing was unpacked")


def _checked_members(file: Path, tar: tarfile.TarFile, size: int) -> Iterator[_Member]:
    """Yield the files of a bundle's tar, and compare each with the manifest once it was read."""
    manifest: Manifest | None = None
    names: set[str] = set()
    for entry in tar:
        name = entry.name
        if not entry.isreg() or name in names or not _is_inside(name):
            raise BundleError(
                f"{file} has an entry that no bundle has: {name!r}; nothing was unpacked"
            )
        names.add(name)
        data = tar.extractfile(entry)
        assert data is not None
        if manifest is None:
            manifest = _read_manifest(file, entry, data)
            _check_expansion(file, size, manifest)
            yield _Member(manifest, name, io.BytesIO(manifest.text.encode()))
            continue
        described = manifest.files.get(name)
        if described is None or described.size != entry.size:
            raise BundleError(f"{file}: {name} is not what the manifest says; nothing was unpacked")
        reader: Any = _HashingReader(file, data, entry.size)
        yield _Member(manifest, name, reader)
        if reader.digest_of_all().hex() != described.sha256:
            raise BundleError(
                f"{file}: {name} was altered: its digest is not the manifest's; "
                "nothing was unpacked"
            )
    if manifest is None:
        raise BundleError(f"{file} is no bundle: it is empty")
    missing = sorted(set(manifest.files) - (names - {MANIFEST}))
    if missing:
        raise BundleError(f"{file} is cut: {missing[0]} is missing; get it again")


def _read_manifest(file: Path, entry: tarfile.TarInfo, data: IO[bytes]) -> Manifest:
    """Return the manifest, which is a bundle's first file."""
    if entry.name != MANIFEST:
        raise BundleError(f"{file} is no bundle: it does not begin with {MANIFEST}")
    if entry.size > _SLACK:
        raise BundleError(f"{file}: {MANIFEST} has {entry.size} bytes; nothing was unpacked")
    return parse_manifest(data.read(), f"{file}: {MANIFEST}")


class _BundleTar(tarfile.TarFile):
    """The tar of a bundle.

    Attributes:
        has_long_name: whether the last header holds the name of the file whose header comes next.
    """

    has_long_name = False


class _BundleEntry(tarfile.TarInfo):
    """A tar entry; headers of kinds that no bundle has are refused before they are read."""

    def _proc_member(self, tar: _BundleTar) -> Self:
        """Check a header before its content is read.

        A bundle has files and, before a file, the long name of it. Of other headers, tarfile keeps
        the holes of sparse files in memory, and reads one within the other as deep as they go.

        Python has no public place for this: newer versions do not call `frombuf` any longer.
        """
        is_long_name = self.type == tarfile.XHDTYPE
        is_file = self.type in (tarfile.REGTYPE, tarfile.AREGTYPE)
        if not is_file and (not is_long_name or tar.has_long_name or self.size > _MAX_HEADER):
            raise BundleError(
                f"the tar has a header that no bundle has: {self.name!r}, of the type "
                f"{self.type!r} and {self.size} bytes; nothing was unpacked"
            )
        tar.has_long_name = is_long_name
        return super()._proc_member(tar)  # type: ignore[misc, no-any-return]

    def _refuse_holes(self, *arguments: Any) -> None:
        raise BundleError(f"a file of the tar is sparse: {self.name!r}; nothing was unpacked")

    _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _refuse_holes


def _check_expansion(file: Path, size: int, manifest: Manifest) -> None:
    """Refuse a bundle that would expand to more than its limits, before anything is unpacked.

    Every file has exactly its size in the manifest, so that the manifest tells the total.
    """
    total = sum(described_file.size for described_file in manifest.files.values())
    limit = min(MAX_BYTES, _SLACK + MAX_EXPANSION * size)
    if total > limit or len(manifest.files) > MAX_FILES:
        raise BundleError(
            f"{file} would expand to {len(manifest.files)} files of {total} bytes, and its limits "
            f"are {MAX_FILES} files and {limit} bytes: nothing was unpacked; split what it holds "
            "into several prewarmed folders, or distrust it"
        )


def _is_inside(name: str) -> bool:
    """Return whether a prewarmed folder may have a file of a name."""
    path = PurePosixPath(name)
    return (
        name.isprintable()
        and "\\" not in name
        and path.as_posix() == name
        and ".." not in path.parts
        and (name == MANIFEST or (len(path.parts) > 1 and path.parts[0] in (RECORDS, BINARIES)))
    )


def _open_bundle(file: Path) -> IO[bytes]:
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise BundleError(f"{file} cannot be read: {error.strerror or error}") from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):  # a pipe would never end
        os.close(handle)
        raise BundleError(f"{file} is no file")
    return open(handle, "rb")


def _check_seal(file: Path, raw: IO[bytes], size: int, blob: str | None) -> bytes:
    """Refuse a bundle that was cut or altered, before anything in it is read.

    Returns:
        The digest of all bytes before the seal.
    """
    body = _HashingReader(file, raw, max(size - _SEAL.size, 0))
    digest = body.digest_of_all()
    seal = raw.read(_SEAL.size)
    if blob is not None:
        body.hash.update(seal)
        if body.hash.hexdigest() != blob:
            raise BundleError(f"{file} was altered: its digest is not its name")
    if len(seal) != _SEAL.size or _SEAL.unpack(seal)[:2] != (_SKIPPED, 32):
        raise BundleError(f"{file} is cut, or no bundle: it does not end with a seal; get it again")
    if _SEAL.unpack(seal)[2] != digest:
        raise BundleError(f"{file} was altered: its digest is not its seal's; get it again")
    return digest


class _HashingReader(io.RawIOBase):
    """Reads a part of a file, and computes the digest of what was read."""

    def __init__(self, file: Path, raw: IO[bytes], size: int) -> None:
        """Wrap the open file `raw`, of which `size` bytes may be read; errors name `file`."""
        self._file, self._raw, self._remaining = file, raw, size
        self.hash = hashlib.sha256()

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer, and return the number of bytes; 0 at the end."""
        try:
            data = self._raw.read(min(len(buffer), self._remaining))
        except OSError as error:
            raise BundleError(f"{self._file} cannot be read: {error.strerror}") from None
        buffer[: len(data)] = data
        self.hash.update(data)
        self._remaining -= len(data)
        return len(data)

    def digest_of_all(self) -> bytes:
        """Read what is left, and return the digest of all."""
        while self.read(_BLOCK):
            pass
        return self.hash.digest()
