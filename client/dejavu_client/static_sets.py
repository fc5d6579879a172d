"""Signed record sets in files behind any web server, bucket or release page.

    index.signed    an Ed25519 signature, a line end, and the index that it signs (JSON)
    SHA256.json     one file per context, a line of an export, named by its digest

The URL names the publisher's public key, so that nobody is trusted by default: whoever serves the
files can withhold them, and nothing else. The index has each file's digest and size, and a serial
that grows with each publication: a reader never goes back to an earlier one.
"""

from __future__ import annotations

import base64
import hashlib
import math
import os
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from operator import attrgetter
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pydantic import Field, StrictInt, ValidationError, field_validator

from dejavu_cache.errors import NewerFormatError, SettingsError, StoreError
from dejavu_cache.model.merge import merge_into
from dejavu_cache.model.record import Record, RecordSet, first_problem, record_set_line, version_of
from dejavu_cache.model.scenario import Context, FrozenModel, Scenario, canonical_json
from dejavu_cache.settings import current_settings
from dejavu_cache.stores import Found, Store, make_absolute
from dejavu_cache.stores.base import CopyChanges
from dejavu_cache.stores.file_layout import read_set
from dejavu_cache.system import safe_files
from dejavu_cache.system.fork_lock import ForkLock
from dejavu_cache.system.notices import logger, size_text, warn_once
from dejavu_cache.system.safe_files import read_file, replace_file

from .http.errors import NonsenseError, UnreachableError
from .http.transport import Transport

FORMAT = 1
"""The format of the index that this code writes, and the only one that it reads."""

INDEX = "index.signed"

LARGEST_INDEX, LARGEST_FILE = 32 * 2**20, 64 * 2**20
"""Bytes of an index, and of a context's file, beyond which nothing is read or published."""

PATIENCE = 8
"""How many times longer than it may be silent a server may take for one file in all."""

PAUSE_SECONDS = 60.0
"""Time for which a set is left alone after it could not be reached, or was refused."""

MOST_CONTEXTS = 64
"""Contexts of which a process keeps the records in memory."""

_PURPOSE = b"dejavu-cache record sets\n"
"""What a signature begins with, so that one for something else is none for an index."""

_USAGE = "write static+https://host/set?key=KEY, the publisher's public key of 43 characters"

_FILE = re.compile(r"[0-9a-f]{64}\.json")

_transport = Transport()  # its deadlines interrupt all its requests: none of a team's server
os.register_at_fork(after_in_child=_transport.abandon)


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


class _Index(FrozenModel):
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


def read_index(data: bytes, key: str, where: str) -> _Index:
    """Return the index of a file that the publisher's key has signed.

    Raises:
        StoreError: it is not signed by the key, or cannot be read.
    """
    signature, _, text = data.partition(b"\n")
    if not _verifies(key, signature, text):
        raise StoreError(
            f"{where} is refused: it is unsigned, was altered, or is signed by another key than "
            f"{key}: ask the publisher for the key, and name it in the URL"
        )
    version = version_of(text)
    if version > FORMAT:
        raise NewerFormatError(where, version, FORMAT)
    try:
        return _Index.model_validate_json(text)
    except ValidationError as error:
        raise _refusal(where, f"it is no index ({first_problem(error)})") from None


def _verifies(key: str, signature: bytes, text: bytes) -> bool:
    """Return whether a text carries a key's signature, in hexadecimal."""
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError:
        raise StoreError("a signed set needs pip install 'dejavu-cache[signed]'") from None
    if not re.fullmatch(rb"[0-9a-f]{128}", signature):
        return False
    try:
        public = Ed25519PublicKey.from_public_bytes(base64.urlsafe_b64decode(f"{key}="))
        public.verify(bytes.fromhex(signature.decode()), _PURPOSE + text)
    except (InvalidSignature, ValueError):
        return False
    return True


def _refusal(where: str, reason: object) -> StoreError:
    return StoreError(f"{where} is refused: {reason}; fetch it again later, or tell the publisher")


class _Files:
    """The files of a set at its place, each read within its size and a deadline.

    Attributes:
        wait: seconds for which a server may be silent; commands set more than launches.
    """

    def __init__(self, base_url: str, wait: float) -> None:
        """Read nothing yet."""
        self.base_url, self.wait = base_url, wait
        self._failure, self._next_try = "", 0.0

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Leave the place alone for a while after an error in the block, and raise it again."""
        if time.monotonic() < self._next_try:
            raise UnreachableError(f"{self._failure}; it is asked again later")
        try:
            yield
        except StoreError as error:
            self._failure, self._next_try = str(error), time.monotonic() + PAUSE_SECONDS
            raise

    def read(self, name: str, largest: int, etag: str = "") -> tuple[bytes, str] | None:
        """Return a file and its ETag, or None if it still has the one that is given."""
        url = f"{self.base_url}/{name}"
        if url.startswith("file:"):
            return self._read_local(Path(unquote(urlsplit(url).path)), largest)
        try:
            answer = _transport.send(
                "GET",
                url,
                server=self.base_url,
                silence=self.wait,
                seconds=PATIENCE * self.wait,
                largest=largest,
                follow_redirects=True,  # a release page keeps its files elsewhere
                headers={"If-None-Match": etag} if etag else {},
            )
        except NonsenseError as error:
            raise _refusal(url, error) from None
        if answer.status == 304 and etag:
            return None
        if answer.status in (403, 404, 410):
            raise StoreError(f"{url} is not there ({answer.status}): check the set's URL")
        if answer.status != 200:
            raise UnreachableError(f"{url} cannot be read now: it answers {answer.status}")
        return answer.body, answer.headers.get("etag", "")

    def _read_local(self, path: Path, largest: int) -> tuple[bytes, str]:
        try:
            with safe_files.open_to_read(path) as file:
                data = file.read(largest + 1)
        except FileNotFoundError:
            raise StoreError(f"{path} is not there: check the set's URL") from None
        except OSError as error:
            raise UnreachableError(f"{path} cannot be read: {error.strerror}") from None
        if len(data) > largest:
            raise _refusal(str(path), f"it has more than {size_text(largest)}")
        return data, ""


class StaticStore(Store):
    """A publisher's signed record sets: `static+https://host/set?key=KEY`.

    Files are fetched as contexts are asked for, verified, and kept in the user's cache, from which
    they serve while the place is away. The index is asked for again every `refresh` seconds.

    Args:
        base_url: the URL of the folder, without `static+`.
        key: the publisher's public key, 43 characters of base64url.
        wait: seconds for which the server may be silent.
        folder: where copies are kept; by default in the user's cache.
    """

    remote = read_only = keeps_copies = True

    def __init__(self, base_url: str, key: str, *, wait: float, folder: Path | None = None) -> None:
        """Read nothing yet."""
        self.url = f"static+{base_url}?key={key}"
        self.calls = _Files(base_url, wait)
        self._key = key
        name = hashlib.sha256(self.url.encode()).hexdigest()[:32]
        self._folder = folder or safe_files.user_folder("static") / name
        self._index: _Index | None = None
        self._data, self._etag = b"", ""
        self._lock = ForkLock()
        self._entries: dict[Context, IndexEntry] = {}
        self._due = 0.0
        self._loaded: dict[Context, tuple[str, dict[Scenario, Record]]] = {}
        self._told: dict[Context, str] = {}

    def get(self, context: Context, scenario: Scenario, *, fresh: bool = False) -> Found | None:
        """Return a scenario's record; `fresh` asks for the index again."""
        record = self._records_of(context, fresh).get(scenario)
        return Found(record, self.url, is_strangers=True) if record else None

    def records(self, context: Context) -> Iterator[Record]:
        """Return the records of a context, whose file is fetched if there is no copy."""
        return iter(sorted(self._records_of(context).values(), key=attrgetter("scenario.text")))

    def revision(self, context: Context) -> str:
        """Return the digest of a context's file, as far as the index is known."""
        entry = self._entries.get(context)
        return entry.sha256 if entry else ""

    def contexts(self, kernel: str | None = None) -> Iterator[Context]:
        """Return the contexts of the index."""
        contexts = sorted((entry.context for entry in self.entries()), key=attrgetter("text"))
        return (context for context in contexts if kernel in (None, context.kernel.name))

    def entries(self, *, fresh: bool = False) -> list[IndexEntry]:
        """Return what the index has of each context; with `fresh`, no copy stands in for it."""
        if fresh:
            self._read_copy()
            self._fetch_index()
        self._refresh()
        return list(self._entries.values())

    def put(self, context: Context, records: Iterable[Record], *, now: bool = False) -> None:
        """Refuse: only the publisher writes."""
        self._refuse_if_read_only()

    def delete(self, context: Context, scenarios: Iterable[Scenario] | None = None) -> int:
        """Refuse: only the publisher writes."""
        self._refuse_if_read_only()
        return 0

    def revalidate(
        self, copies: Mapping[Context, Collection[Scenario]]
    ) -> dict[Context, CopyChanges]:
        """Return the contexts that have another file, or none any more, than they first had.

        A launch may have read the new index before, for another record.
        """
        self._refresh(at_once=True)
        now = {context: self.revision(context) for context in copies}
        changed = [each for each in now if self._told.get(each, now[each]) != now[each]]
        self._told |= now
        return dict.fromkeys(changed, CopyChanges((), {}))

    def _records_of(self, context: Context, fresh: bool = False) -> dict[Scenario, Record]:
        self._refresh(at_once=fresh)
        entry = self._entries.get(context)
        self._told.setdefault(context, entry.sha256 if entry else "")
        if entry is None:
            return {}
        digest, records = self._loaded.get(context, ("", {}))
        if digest != entry.sha256:
            records = self._load(entry)
            if len(self._loaded) >= MOST_CONTEXTS:
                self._loaded.clear()
            self._loaded[context] = entry.sha256, records
        return records

    def _load(self, entry: IndexEntry) -> dict[Scenario, Record]:
        """Return the records of a file, from its copy if there is one, and keep one else."""
        copy, where = self._folder / entry.file, f"{self.calls.base_url}/{entry.file}"
        with suppress(OSError):
            data = read_file(copy, self._folder)
            if hashlib.sha256(data).hexdigest() == entry.sha256:
                return self._parse(data, entry, str(copy))
        with self.calls.attempt():
            data, _ = self.calls.read(entry.file, entry.size) or (b"", "")
            if hashlib.sha256(data).hexdigest() != entry.sha256:
                raise _refusal(where, "it is not the file that the index names")
            records = self._parse(data, entry, where)
        self._keep(copy, data)
        return records

    def _parse(self, data: bytes, entry: IndexEntry, where: str) -> dict[Scenario, Record]:
        record_set = read_set(data, where)
        if record_set.context != entry.context:
            raise _refusal(where, "it has another context than the index says")
        # A person's choice binds that person's team; a launch here goes by what was measured.
        return merge_into({}, (one.model_copy(update={"pin": None}) for one in record_set.records))

    def _refresh(self, *, at_once: bool = False) -> None:
        """Ask for the index where that is due; without an answer, the copy serves.

        Raises:
            StoreError: there is neither an index that can be trusted nor a copy.
        """
        if self._index is None:
            self._read_copy()
        if not at_once and self._index is not None and time.monotonic() < self._due:
            return
        self._due = time.monotonic() + (current_settings().refresh or math.inf)
        try:
            with self.calls.attempt():
                self._fetch_index()
        except StoreError as error:
            if self._index is None:
                raise
            if isinstance(error, UnreachableError):
                logger.debug("%s; the copy of an earlier index serves", error)
            else:
                warn_once(f"static {error}", f"{error}; the copy of an earlier index serves")

    def _fetch_index(self) -> None:
        where = f"{self.calls.base_url}/{INDEX}"
        answer = self.calls.read(INDEX, LARGEST_INDEX, self._etag)
        if answer is None:
            return
        data, etag = answer
        with self._lock:
            self._read_copy()  # which another process may have renewed
            if data == self._data:
                return
            index = read_index(data, self._key, where)
            if self._index is not None and index.serial <= self._index.serial:
                raise StoreError(
                    f"{where} is refused: its serial {index.serial} is not after "
                    f"{self._index.serial}, which was seen before: if the publisher began anew, "
                    f"delete {self._folder}"
                )
            self._adopt(index, data, etag if etag.isascii() else "")
        # Copies are named by their serial: of two processes, none can put an earlier one back.
        self._keep(self._folder / f"{index.serial:020}.index", f"{self._etag}\n".encode() + data)
        self._drop_others({entry.file for entry in index.entries})

    def _adopt(self, index: _Index, data: bytes, etag: str) -> None:
        self._entries = {entry.context: entry for entry in index.entries}
        self._index, self._data, self._etag = index, data, etag

    def _read_copy(self) -> None:
        """Take the latest index whose copy is signed, if it is later than the present one."""
        for path in sorted(self._folder.glob("*.index"), reverse=True):
            with suppress(OSError, StoreError, ValueError):
                etag, _, data = read_file(path, self._folder).partition(b"\n")
                index = read_index(data, self._key, str(path))
                if self._index is None or index.serial > self._index.serial:
                    self._adopt(index, data, etag.decode())
                return

    def _keep(self, path: Path, data: bytes) -> None:
        """Write a copy; without room for it, files are fetched again."""
        try:
            replace_file(path, data, self._folder, durable=False)
        except OSError as error:
            warn_once(f"static {path.parent}", f"no copies are kept in {path.parent}: {error}")

    def _drop_others(self, files: set[str]) -> None:
        """Delete copies that the newest index does not name."""
        earlier = sorted(self._folder.glob("*.index"))[:-1]
        gone = [path for path in self._folder.glob("*.json") if path.name not in files]
        for path in (*earlier, *gone):
            with suppress(OSError):
                path.unlink()


def open_static(url: str) -> StaticStore:
    """Open `static+https://host/path?key=KEY`, or a URL with `http` or `file` instead.

    Raises:
        SettingsError: the URL names no place or no key.
    """
    parts = urlsplit(url.removeprefix("static+"))
    key = parts.query.removeprefix("key=")
    is_known = parts.scheme in ("https", "http") and bool(parts.hostname)
    is_known = is_known or (parts.scheme == "file" and parts.netloc in ("", "localhost"))
    is_whole = is_known and "@" not in parts.netloc and not parts.fragment and url.isprintable()
    if not is_whole or not re.fullmatch(r"key=[A-Za-z0-9_-]{43}", parts.query):
        raise SettingsError(f"{url!r} names no signed set: {_USAGE}")
    base_url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
    return StaticStore(base_url, key, wait=current_settings().wait)


def static_url(url: str, key: str) -> str:
    """Return the URL of a set for `DEJAVU_CACHE_URL`, given that of its folder and a key."""
    return open_static(f"static+{make_absolute(url.removeprefix('static+'))}?key={key}").url


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
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}; --new-key makes one") from None
    except (TypeError, ValueError):  # it has a passphrase, or is something else
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
    replace_file(path, data, path.parent)


def publish(record_sets: Iterable[RecordSet], folder: Path, key_file: Path) -> str:
    """Write record sets into a folder, the index last, and return the public key.

    Files of the index before this one stay for who still reads it; earlier ones go.

    Raises:
        StoreError: a file cannot be read or written, or is too large.
    """
    private = read_private_key(key_file)
    public = base64.urlsafe_b64encode(private.public_key().public_bytes_raw()).decode().rstrip("=")
    path, entries = folder / INDEX, []
    try:
        content = path.read_bytes() if path.exists() else b""
        if content and not _verifies(public, *content.partition(b"\n")[::2]):
            raise StoreError(
                f"{path} is signed by another key: name that one, or delete the file to publish "
                "with this key from now on"
            )
        earlier = read_index(content, public, str(path)) if content else None
        for context, records in map(attrgetter("context", "records"), record_sets):
            data = "".join(record_set_line(context, records)).encode()
            size, digest = len(data), hashlib.sha256(data).hexdigest()
            _write(folder / f"{digest}.json", data, LARGEST_FILE)
            entry = IndexEntry(context=context, sha256=digest, size=size, records=len(records))
            entries.append(entry)
        serial = max(int(time.time()), earlier.serial + 1 if earlier else 0)
        text = canonical_json(_Index(serial=serial, entries=tuple(entries))).encode()
        _write(path, sign_index(text, private), LARGEST_INDEX)
    except OSError as error:
        raise StoreError(f"{folder} cannot be written: {error.strerror or error}") from None
    named = {entry.file for entry in (*entries, *(earlier.entries if earlier else ()))}
    for file in folder.iterdir():
        if _FILE.fullmatch(file.name) and file.name not in named:
            file.unlink(missing_ok=True)
    return public
