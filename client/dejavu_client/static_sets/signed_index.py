"""Indexes of record sets: what a publisher signs and writes, and what a reader believes."""

import base64
import hashlib
import os
import re
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Any

from filelock import Timeout
from pydantic import Field, StrictInt, ValidationError, field_validator

from dejavu_cache.errors import NewerFormatError, SettingsError, StoreError
from dejavu_cache.model.record import RecordSet, first_problem, record_set_line, version_of
from dejavu_cache.model.scenario import Context, FrozenModel, canonical_json
from dejavu_cache.stores.file import hold_lock
from dejavu_cache.system import safe_files
from dejavu_cache.system.notices import size_text, warn_once

FORMAT = 1
"""The format of the index that this code writes, and the only one that it reads."""

INDEX = "index.signed"

LARGEST_INDEX, LARGEST_FILE = 32 * 2**20, 64 * 2**20
"""Bytes of an index, and of a context's file, beyond which nothing is read or published."""

_PURPOSE = b"dejavu-cache record sets\n"
"""What a signature begins with, so that one for something else is none for an index."""

_FILE = re.compile(r"([0-9a-f]{64}\.json|index\.signed)(\.tmp-.*)?")
"""Files of a set, and what a publisher was writing when it was killed."""

MOMENT, LONGEST_WAIT = 1.0, 60.0
"""Seconds for which a publisher waits for another one silently, and from then on."""


class IndexEntry(FrozenModel):
    """What an index says of one context's file."""

    context: Context
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    size: StrictInt = Field(ge=1, le=LARGEST_FILE)
    records: StrictInt = Field(ge=0)

    @property
    def file(self) -> str:
        """Name of the file."""
        return f"{self.sha256}.json"


class SignedIndex(FrozenModel):
    """All files of a set."""

    format: StrictInt = Field(default=FORMAT, ge=FORMAT, le=FORMAT)
    serial: StrictInt = Field(ge=1, lt=2**53)
    entries: tuple[IndexEntry, ...] = Field(max_length=100_000)

    @field_validator("entries")
    @classmethod
    def _check_contexts(cls, entries: tuple[IndexEntry, ...]) -> tuple[IndexEntry, ...]:
        if len({entry.context for entry in entries}) < len(entries):
            raise ValueError("two files of one context")
        return entries


def read_index(data: bytes, key: str, where: str) -> SignedIndex:
    """Return the index of a file that the publisher's key has signed.

    Raises:
        StoreError: it is not signed by the key, or cannot be read.
    """
    if not _verifies(key, data):
        raise StoreError(
            f"{where} is refused: it is unsigned, was altered, or is signed by another key than "
            f"{key}: ask the publisher for the key"
        )
    text = data.partition(b"\n")[2]
    try:
        return SignedIndex.model_validate_json(text)
    except ValidationError as error:
        if (version := version_of(text)) > FORMAT:
            raise NewerFormatError(where, version, FORMAT) from None
        raise refusal(where, f"it is no index ({first_problem(error)})") from None


def _verifies(key: str, data: bytes) -> bool:
    """Return whether the file of an index begins with a key's signature, in hexadecimal."""
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError:
        raise StoreError("a signed set needs pip install 'dejavu-cache[signed]'") from None
    signature, _, text = data.partition(b"\n")
    if not re.fullmatch(rb"[0-9a-f]{128}", signature):
        return False
    try:
        public = Ed25519PublicKey.from_public_bytes(base64.urlsafe_b64decode(f"{key}="))
        public.verify(bytes.fromhex(signature.decode()), _PURPOSE + text)
    except (InvalidSignature, ValueError):
        return False
    return True


def refusal(where: str, reason: object) -> StoreError:
    """Return the error of a file that is not what its publisher has signed."""
    return StoreError(f"{where} is refused: {reason}; fetch it again later, or tell the publisher")


def make_key(path: Path) -> None:
    """Make a private key that only this user can read.

    Raises:
        SettingsError: there is a file already.
    """
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    if path.exists():
        raise SettingsError(f"{path} is there already: leave out --new-key, or name another file")
    pem = Ed25519PrivateKey.generate().private_bytes(
        form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()
    )
    with safe_files.open_replacement(path, mode=0o600) as file:
        file.write(pem)


def read_private_key(path: Path) -> Any:
    """Return the Ed25519 key of a PEM file."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        with path.open("rb") as file:  # which may be a pipe, or a device that never ends
            key = load_pem_private_key(file.read(64 * 2**10), None)
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}; --new-key makes one") from None
    except (TypeError, ValueError, UnsupportedAlgorithm):  # of one with a passphrase, too
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise SettingsError(f"{path} is no Ed25519 key in PEM without a passphrase")
    return key


def sign_index(text: bytes, private: Any) -> bytes:
    """Return the content of the file of an index, given its JSON."""
    signature: bytes = private.sign(_PURPOSE + text)
    return signature.hex().encode() + b"\n" + text


def _write(path: Path, data: bytes, largest: int) -> None:
    if len(data) > largest:
        raise StoreError(f"{path} would have more than {size_text(largest)}: publish fewer kernels")
    # What a loss of power takes is refused by readers, and there again after the next publication.
    safe_files.replace_file(path, data, path.parent, durable=False)


def publish(record_sets: Iterable[RecordSet], folder: Path, key_file: Path) -> str:
    """Write record sets into a folder, the index last, and return the public key.

    Files of the index before this one stay for who still reads it; earlier ones go.

    Raises:
        StoreError: a file cannot be read or written, or is too large.
    """
    if key_file.resolve().is_relative_to(folder.resolve()):
        raise SettingsError(f"{key_file} would be served with the set: name one outside {folder}")
    private = read_private_key(key_file)
    public = base64.urlsafe_b64encode(private.public_key().public_bytes_raw()).decode().rstrip("=")
    lock = folder.resolve() / ".lock"
    try:
        try:
            with hold_lock(lock, MOMENT):
                pass
        except Timeout:
            warn_once(f"publish {folder}", f"another process publishes in {folder}: waiting for it")
        with hold_lock(lock, LONGEST_WAIT):  # two at once would delete what the other names
            _write_set(record_sets, folder, private, public)
    except OSError as error:
        raise StoreError(f"{folder} cannot be written: {error}") from None
    return public


def _write_set(record_sets: Iterable[RecordSet], folder: Path, private: Any, public: str) -> None:
    path, entries = folder / INDEX, []
    content = path.read_bytes() if path.exists() else b""
    if content and not _verifies(public, content):
        raise StoreError(
            f"{INDEX} is signed by another key: name that one, or delete what is there to publish "
            "with this key from now on"
        )
    earlier = read_index(content, public, INDEX) if content else SignedIndex(serial=1, entries=())
    named = {INDEX, *(entry.file for entry in earlier.entries)}
    _drop_others(folder, named)  # a publisher that was killed may have filled the disk
    try:
        for record_set in filter(attrgetter("records"), record_sets):  # none were deleted meanwhile
            context, records = record_set.context, record_set.records
            data = "".join(record_set_line(context, records)).encode()
            size, digest = len(data), hashlib.sha256(data).hexdigest()
            _write(folder / f"{digest}.json", data, LARGEST_FILE)
            entry = IndexEntry(context=context, sha256=digest, size=size, records=len(records))
            entries.append(entry)
        serial = max(int(time.time()), earlier.serial + 1)
        text = canonical_json(SignedIndex(serial=serial, entries=tuple(entries))).encode()
        named |= {entry.file for entry in entries}
        _write(path, sign_index(text, private), LARGEST_INDEX)
        # Web servers and mirrors tell a file's versions by its size and the second of its change.
        with suppress(OSError, OverflowError):
            os.utime(path, (serial, serial))
    finally:
        _drop_others(folder, named)


def _drop_others(folder: Path, named: Collection[str]) -> None:
    """Delete files of sets that are not named."""
    for file in folder.iterdir():
        if _FILE.fullmatch(file.name) and file.name not in named:
            file.unlink(missing_ok=True)
