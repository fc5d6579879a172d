"""Open the stores that URLs name, keep records in memory, and combine several stores into one."""

import os
import re
import threading
import time
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from itertools import filterfalse
from operator import attrgetter
from pathlib import Path
from urllib.parse import unquote_to_bytes, urlsplit

from ..errors import SettingsError, StoreError, did_you_mean
from ..model.merge import merge_into, merge_records, without_parts
from ..model.record import Record
from ..model.scenario import Context, Scenario
from ..model.worth import ONCE, MissCount
from ..settings import current_settings
from ..system.background_threads import dropping_errors, let_signals_through
from ..system.fork_lock import ForkCondition
from ..system.notices import warn_once
from ..system.safe_files import expand_home
from .base import Found, Store
from .copies import LocalCopies
from .file import FileStore
from .manifest import MANIFEST, RECORDS

SCHEMES = "dejavu_cache.stores"
"""Entry-point group of further schemes; an entry point is a callable from a URL to a `Store`."""

PREWARMED = "prewarmed"
"""Scheme of prewarmed folders, the only ones from which a process loads binaries."""

_BUILT_IN = ("file", "memory", PREWARMED)

SHIPPED = "dejavu_cache.records"
"""Entry-point group of shipped records; an entry point is a package that contains them."""

PATIENCE = 30.0
"""Seconds that a command waits for a server; a launch waits less."""

_ACCEPTED = (
    "give a folder (/path, file:///path or file:///path?read_only=1), prewarmed:///folder, "
    "memory:// or https://server, or ./NAME for a folder whose name looks like a URL"
)

_HALF_A_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?!//)|(https?|file)//|[^:]*\?read_only=")
"""Mistyped URLs, which would otherwise be folders of that name."""

_thread = threading.local()


def tiers_of(store: Store) -> tuple[Store, ...]:
    """Return the tiers of a store; a store without tiers is its only one."""
    return store.tiers if isinstance(store, TieredStore) else (store,)


class LookUp:
    """All that one launch asks a store, and the seconds that it lets the launch wait, and pause."""

    waited = paused = 0.0


def current_look(place: str) -> LookUp:
    """Return what this thread's launch asks a place; without a launch, each question is its own."""
    looks: dict[str, LookUp] | None = getattr(_thread, "looks", None)
    return LookUp() if looks is None else looks.setdefault(place, LookUp())


@contextmanager
def one_look() -> Iterator[None]:
    """Have all questions of this thread be those of one look, and not of one around it."""
    outer, _thread.looks = getattr(_thread, "looks", None), {}
    try:
        yield
    finally:
        _thread.looks = outer


@dataclass(eq=False, repr=False)
class MemoryStore(Store):
    """Records in a dictionary: `memory://`. Every store opened with this URL is a new one."""

    url = "memory://"
    _records: dict[Context, dict[Scenario, Record]] = field(default_factory=dict, init=False)
    _changes: int = field(default=0, init=False)
    _lock: ForkCondition = field(default_factory=ForkCondition, init=False)
    _leases: dict[tuple[int, str, str], bool] = field(default_factory=dict, init=False)

    def get(self, context: Context, scenario: Scenario, *, fresh: bool = False) -> Found | None:
        """Return a scenario's record; there is nothing to read again."""
        record = self._records.get(context, {}).get(scenario)
        return Found(record, self.url) if record else None

    def records(self, context: Context) -> Iterator[Record]:
        """Return a context's records as they are at the time of the call."""
        with self._lock:
            records = list(self._records.get(context, {}).values())
        return iter(sorted(records, key=lambda record: record.scenario.text))

    def revision(self, context: Context) -> int:
        """Return the number of changes of the whole store."""
        return self._changes

    def contexts(self, kernel: str | None = None) -> Iterator[Context]:
        """Return the contexts as they are at the time of the call."""
        with self._lock:
            held = [context for context, records in self._records.items() if records]
        contexts = [context for context in held if kernel in (None, context.kernel.name)]
        return iter(sorted(contexts, key=lambda context: context.text))

    def put(self, context: Context, records: Iterable[Record], *, now: bool = False) -> None:
        """Merge records into a context, all of them or none."""
        self._refuse_if_read_only()
        with self._lock:
            before = self._records.get(context, {})
            self._records[context] = merge_into(before, records)
            self._changes += self._records[context] != before

    def delete(self, context: Context, scenarios: Iterable[Scenario] | None = None) -> int:
        """Delete records; a context without any is none."""
        self._refuse_if_read_only()
        with self._lock:
            before = self._records.get(context, {})
            gone = set(before) if scenarios is None else before.keys() & set(scenarios)
            self._records[context] = {kept: before[kept] for kept in before.keys() - gone}
            self._changes += bool(gone)
            return len(gone)

    def recall(self, context: Context, parts: Mapping[Scenario, Collection[str]]) -> None:
        """Remove parts of records, and records of which nothing is left."""
        self._refuse_if_read_only()
        with self._lock:
            before = self._records.get(context, {})
            records = dict(before)
            for scenario in before.keys() & parts.keys():
                remaining = without_parts(records.pop(scenario), parts[scenario])
                if remaining is not None:
                    records[scenario] = remaining
            self._records[context] = records
            self._changes += records != before

    @contextmanager
    def lease(self, context: Context, scenario: Scenario, *, wait: float) -> Iterator[bool]:
        """Hold a scenario's lease among the threads of this process."""
        # A forked child has the parent's leases, but not the threads that would end them.
        lease, is_ours = (os.getpid(), context.digest, scenario.digest), False
        try:
            with self._lock:
                if self._lock.wait_for(lambda: lease not in self._leases, wait):
                    self._leases[lease] = is_ours = True
            yield is_ours
        finally:
            if is_ours:  # first, so that no signal handler's error keeps the lease
                del self._leases[lease]
            with self._lock:
                self._lock.notify_all()


class TieredStore(Store):
    """Stores, called tiers, from the nearest to the farthest.

    A lookup merges the record's parts of all local tiers. If none has any, it asks the remote
    tiers, and copies their answer to the writable local tiers before them. Writes go to every
    writable tier. A tier that fails is skipped with one warning; `put` raises only if every
    writable tier fails. A launch wants that; a strict store raises the error of any tier.
    """

    def __init__(self, tiers: Sequence[Store], *, strict: bool = False) -> None:
        """Combine stores, the nearest first.

        With `strict`, an error of one tier is raised; else the tier is skipped.
        """
        self.tiers = tuple(tiers)
        self.strict = strict
        self.url = ",".join(map(attrgetter("url"), self.tiers))
        self.read_only = all(map(attrgetter("read_only"), self.tiers))
        self.remote = any(map(attrgetter("remote"), self.tiers))
        self.writable = list(filterfalse(attrgetter("read_only"), self.tiers))
        self.copies: LocalCopies | None = None
        """Keeps the local copies of all records right that are looked up."""

    def get(self, context: Context, scenario: Scenario, *, fresh: bool = False) -> Found | None:
        """Return a record merged from the local tiers; ask the remote ones if that is a miss."""
        if self.copies is not None:
            self.copies.watch(context, scenario)
        best: Found | None = None
        for tier in sorted(self.tiers, key=attrgetter("remote", "keeps_copies")):
            if best is not None and tier.remote and not fresh:
                break
            if best is not None and tier.keeps_copies and best.record.winner is not None:
                break  # what strangers found fills what the team lacks, and overrules nothing
            with self._passed_over_if_it_fails(tier):
                found = tier.get(context, scenario, fresh=fresh)
                if best is not None and found is not None:
                    is_from_stranger = best.is_from_stranger or found.is_from_stranger
                    merged = merge_records(best.record, found.record)
                    best = Found(merged, best.store, is_from_stranger)
                else:
                    best = best or found
        if best and best.store != self.tiers[0].url and not best.is_from_stranger:
            self._fill_back(context, best)
        return best

    def _fill_back(self, context: Context, hit: Found) -> None:
        """Copy a record to the writable local tiers before the one that had it."""
        for tier in self.tiers:
            if tier.url == hit.store:
                return
            if not (tier.read_only or tier.remote):
                try:
                    tier.put(context, [hit.record])
                except (StoreError, OSError) as error:
                    let_signals_through(error)
                    if self.strict:
                        raise
                    _warn_of_unwritable(tier, error)

    def records(self, context: Context) -> Iterator[Record]:
        """Return a context's records, merged from all tiers."""
        merged: dict[Scenario, Record] = {}
        for tier in self.tiers:
            with self._passed_over_if_it_fails(tier):
                merged = merge_into(merged, tier.records(context))
        return iter(sorted(merged.values(), key=lambda record: record.scenario.text))

    def scenario_texts(self, context: Context) -> Iterator[str]:
        """Return the scenarios of all tiers, sorted and without repetition."""
        texts: dict[str, None] = {}  # in order, since sorted texts are sorted faster
        for tier in self.tiers:
            with self._passed_over_if_it_fails(tier):
                texts.update(dict.fromkeys(tier.scenario_texts(context)))
        return iter(sorted(texts))

    def revision(self, context: Context) -> Hashable | None:
        """Return the revisions of all tiers, or None if one of them cannot tell."""
        revisions = tuple(tier.revision(context) for tier in self.tiers)
        return None if None in revisions else revisions

    def contexts(self, kernel: str | None = None) -> Iterator[Context]:
        """Return the contexts of all tiers, without repetition."""
        contexts: set[Context] = set()
        for tier in self.tiers:
            with self._passed_over_if_it_fails(tier):
                contexts.update(tier.contexts(kernel))
        return iter(sorted(contexts, key=lambda context: context.text))

    def put(self, context: Context, records: Iterable[Record], *, now: bool = False) -> None:
        """Merge records into every writable tier; raise if none, or with `now` not all, can."""
        self._refuse_if_read_only()
        records, failures = list(records), []
        for tier in self.writable:
            try:
                tier.put(context, records, now=now)
            except StoreError as error:
                let_signals_through(error)
                failures.append(error)
                _warn_of_unwritable(tier, error)
        if failures and (now or self.strict or len(failures) == len(self.writable)):
            raise failures[0]

    def delete(self, context: Context, scenarios: Iterable[Scenario] | None = None) -> int:
        """Delete records in every writable tier, and return the largest number of one tier."""
        self._refuse_if_read_only()
        wanted = None if scenarios is None else list(scenarios)
        return max(tier.delete(context, wanted) for tier in self.writable)

    def recall(self, context: Context, parts: Mapping[Scenario, Collection[str]]) -> None:
        """Remove parts of records from every writable local tier."""
        for tier in self.writable:
            if not tier.remote:
                tier.recall(context, parts)

    @contextmanager
    def lease(self, context: Context, scenario: Scenario, *, wait: float) -> Iterator[bool]:
        """Hold the leases of all writable tiers.

        The nearest tier's lease is acquired first, so that only one process of a machine asks a
        server for its lease.
        """
        until, is_ours = time.monotonic() + wait, True
        with ExitStack() as leases:
            for tier in self.writable:
                lease = tier.lease(context, scenario, wait=max(until - time.monotonic(), 0.0))
                is_ours = leases.enter_context(lease)
                if not is_ours:
                    break
            yield is_ours

    def miss(self, context: Context, scenario: Scenario, missed: MissCount = ONCE) -> None:
        """Put launches of a scenario on the worklists of all tiers."""
        for tier in self.tiers:
            with self._passed_over_if_it_fails(tier):
                tier.miss(context, scenario, missed)

    def close(self) -> None:
        """Close every tier."""
        for tier in self.tiers:
            tier.close()

    @contextmanager
    def _passed_over_if_it_fails(self, tier: Store) -> Iterator[None]:
        """Warn once of an error of a tier; a strict store raises it."""
        try:
            yield
        except (StoreError, OSError) as error:
            let_signals_through(error)
            if self.strict:
                raise
            warn_once(tier.url, f"{tier.url} is passed over: {error}")


def _warn_of_unwritable(tier: Store, error: Exception) -> None:
    warn_once(f"put {tier.url}", f"nothing is written to {tier.url}: {error}")


def open_store(url: str) -> Store:
    """Open the store of a URL; several URLs, separated by commas, make a tiered store.

    There are `file:///path`, `/path`, `memory://`, `prewarmed:///path` and schemes that packages
    add, such as `https://…`.

    Raises:
        SettingsError: the URL is empty or mistyped, or no installed package knows its scheme.
    """
    stores: list[Store] = []
    for part in _urls_of(url):
        scheme = urlsplit(part).scheme
        if scheme == "memory":
            stores.append(MemoryStore())
        elif scheme in _BUILT_IN:
            stores.append(_open_folder(part))
        else:
            (point, *_) = entry_points(group=SCHEMES, name=scheme)
            stores.append(point.load()(part))
    return stores[0] if len(stores) == 1 else TieredStore(stores)


def open_patiently(url: str) -> Store:
    """Open the store of a URL, else of the settings; its servers have `PATIENCE` to answer."""
    settings = current_settings()
    store = open_store(url or settings.url or settings.default_url)
    for tier in tiers_of(store):
        with suppress(AttributeError):  # another package's may have a wait of its own
            tier.wait = PATIENCE
    return store


def make_absolute(url: str) -> str:
    """Return a URL, or several, with paths as absolute URLs, which hold in every folder.

    Raises:
        SettingsError: the URL is empty or mistyped, or no installed package knows its scheme.
    """
    return ",".join(_urls_of(url))


def _urls_of(url: str) -> list[str]:
    """Return the URLs of a list that commas separate, a bare path as a folder's; raise if none."""
    urls = []
    for part in filter(None, map(str.strip, url.split(","))):
        try:
            scheme = urlsplit(part).scheme if "://" in part else ""
        except ValueError as error:  # a host's address in one bracket
            raise SettingsError(f"{part!r} names no store ({error}): {_ACCEPTED}") from None
        if _HALF_A_URL.match(part):
            raise SettingsError(f"{part!r} names no store: {_ACCEPTED}")
        if scheme and scheme not in _BUILT_IN:
            known = sorted({*_BUILT_IN, *(point.name for point in entry_points(group=SCHEMES))})
            if scheme not in known:
                raise SettingsError(
                    f"no store knows the scheme {scheme!r} of {part!r}: "
                    f"{did_you_mean(scheme, known)}"
                )
        urls.append(part if scheme else expand_home(part).absolute().as_uri())
    if not urls:
        raise SettingsError(f"{url!r} names no store: {_ACCEPTED}")
    return urls


def prewarmed_folders(url: str) -> list[Path]:
    """Return the folders that a URL names as prewarmed, in order.

    Raises:
        SettingsError: one of their URLs is mistyped.
    """
    parts = map(str.strip, url.split(","))
    return [_path_of(part)[0] for part in parts if part.lower().startswith(f"{PREWARMED}://")]


def _open_folder(url: str) -> FileStore:
    """Open a folder of records; of a prewarmed folder, the records alone are used."""
    folder, read_only = _path_of(url)
    if urlsplit(url).scheme != PREWARMED:
        if not os.path.isfile(folder / MANIFEST):
            return FileStore(folder, read_only=read_only)
        warn_once(
            f"prewarmed {folder}",
            f"{folder} is a prewarmed folder, and a path serves its records alone: name it as "
            f"{PREWARMED}://{folder} in DEJAVU_CACHE_URL to load its binaries too",
        )
    return FileStore(folder / RECORDS, read_only=True)


def _path_of(url: str) -> tuple[Path, bool]:
    """Return the path in a URL, whose bytes need not be UTF-8, and whether it is `read_only`.

    Raises:
        SettingsError: the URL names a host, something beside a path, or other options.
    """
    parts = urlsplit(url)
    path = os.fsdecode(unquote_to_bytes(os.fsencode(parts.path)))
    if (
        not path
        or "\0" in path
        or parts.netloc not in ("", "localhost")
        or parts.fragment
        or parts.query not in ("", "read_only=0", "read_only=1")
    ):
        raise SettingsError(f"{url!r} names no store: {_ACCEPTED}")
    return Path(path), parts.query == "read_only=1"


def _folder_of(point: EntryPoint) -> Path:
    """Return the folder of the package that an entry point names.

    It is found without importing the packages around it.
    """
    package, *inner = point.module.split(".")
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(f"there is no package {package}")
    return Path(spec.submodule_search_locations[0], *inner)


@cache
def shipped_stores() -> list[Store]:
    """Open the records that installed packages ship, for reading only.

    A package ships records by an entry point in the group `dejavu_cache.records`, which names the
    package whose folder contains them.
    """
    stores: list[Store] = []
    for point in sorted(entry_points(group=SHIPPED), key=lambda point: point.name):
        said = f"the records of {point.value} cannot be found"
        with dropping_errors(said, about=f"{SHIPPED}:{point.name}"):  # they must stop no launch
            stores.append(FileStore(_folder_of(point), read_only=True))
    return stores


@cache
def default_store() -> Store:
    """Return the store of `DEJAVU_CACHE_URL`, or of the user's cache directory if that is unset."""
    settings = current_settings()
    return open_store(settings.url or settings.default_url)


def as_tiers(store: Store | str | os.PathLike[str] | None) -> TieredStore:
    """Return the tiers that a launch reads: shipped records, a store and this process's memory.

    With the memory as the last tier, a process can reuse its own results even if the store cannot
    be written. None stands for the default store.
    """
    if isinstance(store, os.PathLike):  # it may have characters that mean more in a URL
        store = open_store(expand_home(store).absolute().as_uri())
    elif not isinstance(store, Store):
        store = default_store() if store is None else open_store(store)
    tiers = [*tiers_of(store)]
    for tier in tiers_of(store):
        if tier.remote and tier.wait is None:
            tiers.remove(tier)
            warn_once(tier.url, f"no launch uses {tier.url}, which does not say how long it waits")
    shipped = shipped_stores() if current_settings().shipped else []
    return TieredStore([*shipped, *tiers, MemoryStore()])
