"""The store of a signed record set, which believes what its publisher has signed."""

import hashlib
import math
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from operator import attrgetter
from pathlib import Path
from urllib.parse import urlsplit

from dejavu_cache.errors import SettingsError, StoreError
from dejavu_cache.model.merge import merge_into
from dejavu_cache.model.record import Record
from dejavu_cache.model.scenario import Context, Scenario
from dejavu_cache.settings import current_settings
from dejavu_cache.stores import Found, Store, make_absolute
from dejavu_cache.stores.base import CopyChanges
from dejavu_cache.stores.file_layout import read_set
from dejavu_cache.system import safe_files
from dejavu_cache.system.background_threads import uninterrupted
from dejavu_cache.system.fork_lock import ForkLock
from dejavu_cache.system.notices import logger, warn_once
from dejavu_cache.system.safe_files import read_file, replace_file

from ..http.circuit import PATIENCE
from ..http.errors import UnreachableError
from .registry import Registry
from .signed_index import INDEX, LARGEST_INDEX, IndexEntry, SignedIndex, read_index, refusal
from .sources import Files, Source, without_login

MOST_CONTEXTS = 64
"""Contexts of which a process keeps the records in memory."""

FETCHERS = 4
"""Files that a command fetches at a time."""

_USAGE = "write static+https://host/set?key=KEY, the publisher's public key of 43 characters"


class StaticStore(Store):
    """A publisher's signed record sets: `static+https://host/set?key=KEY`.

    Files are fetched as contexts are asked for, verified, and kept in the user's cache, from which
    they serve while the place is away. The index is asked for again every `refresh` seconds.

    Args:
        source: the place of the files.
        key: the publisher's public key, 43 characters of base64url.
        folder: where copies are kept; by default in the user's cache.
    """

    remote = read_only = keeps_copies = True
    wait = property(attrgetter("calls.wait"), lambda self, wait: setattr(self.calls, "wait", wait))

    def __init__(self, source: Source, key: str, *, folder: Path | None = None) -> None:
        """Read nothing yet."""
        self.url = f"static+{source.url}?key={key}"
        self.calls = source
        self._key = key
        name = hashlib.sha256(self.url.encode()).hexdigest()[:32]
        self._folder = folder or safe_files.user_folder("static") / name
        self._index: SignedIndex | None = None
        self._data, self._etag = b"", ""
        self._lock = ForkLock()
        self._entries: dict[Context, IndexEntry] = {}
        self._due = 0.0
        self._loaded: dict[Context, tuple[str, dict[Scenario, Record]]] = {}
        self._told: dict[Context, str] = {}

    def get(self, context: Context, scenario: Scenario, *, fresh: bool = False) -> Found | None:
        """Return a scenario's record; `fresh` asks for the index again, and waits longer."""
        wait = PATIENCE * self.wait if fresh else self.wait
        record = self._records_of(context, wait, fresh=fresh).get(scenario)
        return Found(record, self.url, is_from_stranger=True) if record else None

    def records(self, context: Context) -> Iterator[Record]:
        """Return the records of a context, for which no launch waits."""
        records = self._records_of(context, math.inf).values()
        return iter(sorted(records, key=attrgetter("scenario.text")))

    def scenario_texts(self, context: Context) -> Iterator[str]:
        """Return the scenarios of a context's records, for which a launch waits briefly."""
        records = self._records_of(context, self.wait)
        return iter(sorted(scenario.text for scenario in records))

    def contexts(self, kernel: str | None = None) -> Iterator[Context]:
        """Return the contexts of the index."""
        contexts = sorted((entry.context for entry in self.entries()), key=attrgetter("text"))
        return (context for context in contexts if kernel in (None, context.kernel.name))

    def entries(self, *, fresh: bool = False) -> list[IndexEntry]:
        """Return what the index has of each context; with `fresh`, no copy stands in for it."""
        if fresh:
            self._ask(math.inf)
        self._refresh(self.wait)
        return list(self._entries.values())

    def fetch(self, entries: Iterable[IndexEntry]) -> None:
        """Fetch the files of some contexts, several at a time, and verify and keep them."""
        with ThreadPoolExecutor(FETCHERS) as pool:
            for _ in pool.map(partial(self._load, seconds=math.inf), entries):
                pass

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
        """Return the contexts that have another file, or none any more, than launches first saw.

        A launch may have met the new index already, or have left before a file was there. It is
        told once the new file is: the old one serves until then.
        """
        until = time.monotonic() + PATIENCE * self.wait
        self._refresh(PATIENCE * self.wait, at_once=True)
        changes = {}
        for context in copies:
            entry = self._entries.get(context)
            digest = entry.sha256 if entry else ""
            if self._told.get(context, digest) == digest:
                continue
            if entry is not None:
                with suppress(StoreError):
                    self._load(entry, until - time.monotonic())
                if self.calls.is_fetching(entry.file):
                    continue
            self._told[context] = digest
            changes[context] = CopyChanges((), {})
        return changes

    def _records_of(
        self, context: Context, seconds: float, *, fresh: bool = False
    ) -> dict[Scenario, Record]:
        try:
            self._refresh(seconds, at_once=fresh)
            entry = self._entries.get(context)
            self._told.setdefault(context, entry.sha256 if entry else "")
            return self._load(entry, seconds) if entry else {}
        except StoreError:
            self._told[context] = ""  # so that the launch is told once the file is there
            raise

    def _load(self, entry: IndexEntry, seconds: float) -> dict[Scenario, Record]:
        """Return the records of a file, from its copy if there is one, and keep one else."""
        digest, records = self._loaded.get(entry.context, ("", {}))
        if digest == entry.sha256:
            return records
        copy = self._folder / entry.file
        with suppress(OSError):
            data = read_file(copy, self._folder)
            if hashlib.sha256(data).hexdigest() == entry.sha256:
                return self._parse(data, entry, str(copy))
        return self.calls.fetch(entry.file, partial(self._fetch, entry), seconds)

    def _fetch(self, entry: IndexEntry) -> dict[Scenario, Record]:
        where = f"{self.calls.url}/{entry.file}"
        try:
            data, _ = self.calls.read(entry.file, entry.size) or (b"", "")
        except UnreachableError:
            raise
        except StoreError:  # the publisher may have replaced it
            with suppress(StoreError):
                self._fetch_index()
            later = self._entries.get(entry.context)
            if later == entry:
                raise
            return self._fetch(later) if later else {}
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise refusal(where, "it is not the file that the index names")
        records = self._parse(data, entry, where)
        self._keep(self._folder / entry.file, data)
        return records

    def _parse(self, data: bytes, entry: IndexEntry, where: str) -> dict[Scenario, Record]:
        with uninterrupted():
            record_set = read_set(data, where)
            if record_set.context != entry.context:
                raise refusal(where, "it has another context than the index says")
            # A person's choice binds that person's team; a launch here goes by what was measured.
            unpinned = (record.model_copy(update={"pin": None}) for record in record_set.records)
            records = merge_into({}, unpinned)
        if len(self._loaded) >= MOST_CONTEXTS:
            self._loaded.clear()
        self._loaded[entry.context] = entry.sha256, records
        return records

    def _refresh(self, seconds: float, *, at_once: bool = False) -> None:
        """Ask for the index where that is due; without an answer, the copy serves.

        Raises:
            StoreError: there is neither an index that can be trusted nor a copy.
        """
        if self._index is None:
            self._read_copy()
        if not at_once and self._index is not None and time.monotonic() < self._due:
            return
        try:
            self._ask(seconds)
        except StoreError as error:
            if self._index is None:
                raise
            if isinstance(error, UnreachableError):
                logger.debug("%s; the index that was seen before serves", error)
            else:
                warn_once(f"static {error}", f"{error}; the index that was seen before serves")

    def _ask(self, seconds: float) -> None:
        """Ask for the index, and raise an error unless it is one that can be trusted."""
        self._due = time.monotonic() + (current_settings().refresh or math.inf)
        self.calls.fetch(INDEX, self._fetch_index, seconds)

    def _fetch_index(self) -> None:
        where = f"{self.calls.url}/{INDEX}"
        self._read_copy()
        known = self._index
        answer = self.calls.read(INDEX, LARGEST_INDEX, self._etag)
        if answer is None:
            return
        data, etag = answer
        with uninterrupted(), self._lock:
            self._read_copy()
            if self._index is not known or (known and data == self._data):
                return  # another process was faster, or nothing is new
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
        self._drop_others(index)

    def _adopt(self, index: SignedIndex, data: bytes, etag: str) -> None:
        self._entries = {entry.context: entry for entry in index.entries}
        self._index, self._data, self._etag = index, data, etag

    def _read_copy(self) -> None:
        """Take the latest index whose copy is signed, if it is later than the present one."""
        known = self._index.serial if self._index else 0
        for path in sorted(self._folder.glob("*.index"), reverse=True):
            with suppress(OSError, StoreError, ValueError):
                if int(path.stem) <= known:
                    return
                etag, _, data = read_file(path, self._folder).partition(b"\n")
                index = read_index(data, self._key, str(path))
                if index.serial == int(path.stem):  # else its name lies
                    self._adopt(index, data, etag.decode())
                    return

    def _keep(self, path: Path, data: bytes) -> None:
        """Write a copy; without room for it, files are fetched again."""
        try:
            replace_file(path, data, self._folder, durable=False)
        except OSError as error:
            warn_once(f"static {path.parent}", f"no copies are kept in {path.parent}: {error}")

    def _drop_others(self, index: SignedIndex) -> None:
        """Delete copies of earlier indexes, and what this one does not name."""
        files, name = {entry.file for entry in index.entries}, f"{index.serial:020}.index"
        earlier = [path for path in self._folder.glob("*.index") if path.name < name]
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
    is_known = parts.scheme in ("https", "http", "oci") and bool(parts.hostname)
    is_known = is_known or (parts.scheme == "file" and parts.netloc in ("", "localhost"))
    is_whole = is_known and "@" not in parts.netloc and not parts.fragment and url.isprintable()
    if not is_whole or not re.fullmatch(r"key=[A-Za-z0-9_-]{43}", parts.query):
        raise SettingsError(f"{without_login(url)!r} names no signed set: {_USAGE}")
    place = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
    source = Registry if parts.scheme == "oci" else Files
    return StaticStore(source(place, current_settings().wait), key)


def static_url(url: str, key: str) -> str:
    """Return the URL of a set for `DEJAVU_CACHE_URL`, given that of its folder and a key."""
    place = url.removeprefix("static+").replace(",", "%2C")  # lists of URLs have commas
    place = make_absolute(f"static+{place}") if "://" in place else f"static+{make_absolute(place)}"
    return open_static(f"{place}?key={key}").url
