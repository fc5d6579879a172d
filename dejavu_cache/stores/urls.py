"""Open the store that a URL names, or that a process uses where a kernel names none."""

from __future__ import annotations

import os
import re
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ..errors import SettingsError, did_you_mean
from ..settings import current_settings
from ..system.notices import warn_once
from ..system.safe_files import expand_home
from .base import Store
from .file import FileStore
from .manifest import MANIFEST, RECORDS
from .memory import MemoryStore
from .tiered import TieredStore, tiers_of

__all__ = [
    "as_tiers",
    "default_store",
    "make_absolute",
    "open_store",
    "prewarmed_folders",
    "shipped_stores",
]


SCHEMES = "dejavu_cache.stores"
"""Entry-point group of further schemes; an entry point is a callable from a URL to a `Store`."""

PREWARMED = "prewarmed"
"""Scheme of prewarmed folders, the only ones from which a process loads binaries."""

_BUILT_IN = ("file", "memory", PREWARMED)

SHIPPED = "dejavu_cache.records"
"""Entry-point group of shipped records; an entry point is a package that contains them."""

_ACCEPTED = (
    "give a folder (/path, file:///path or file:///path?read_only=1), prewarmed:///folder, "
    "memory:// or https://server, or ./NAME for a folder whose name looks like a URL"
)

_HALF_A_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?!//)|(https?|file)//|[^:]*\?read_only=")
"""Mistyped URLs, which would otherwise be folders of that name."""


def open_store(url: str) -> Store:
    """Open the store of a URL; several URLs, separated by commas, make a tiered store.

    Args:
        url: `file:///path`, `/path`, `memory://`, `prewarmed:///path` or a scheme that a package
            adds, such as `https://…`.

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
    return [_path_of(part)[0] for part in parts if part.startswith(f"{PREWARMED}://")]


def _open_folder(url: str) -> FileStore:
    """Open a folder of records; of a prewarmed folder, the records alone are used."""
    folder, read_only = _path_of(url)
    is_meant, is_prewarmed = urlsplit(url).scheme == PREWARMED, os.path.isfile(folder / MANIFEST)
    if is_meant and not is_prewarmed:
        raise SettingsError(
            f"{url!r}: `dejavu-cache prewarm` made no folder {folder}, or this user may not read it"
        )
    if not is_prewarmed:
        return FileStore(folder, read_only=read_only)
    if not is_meant:
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
    path = unquote(parts.path, errors="surrogateescape")
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
        try:
            folder = _folder_of(point)
        except Exception as error:  # another package's error must not stop a launch
            warn_once(
                f"{SHIPPED}:{point.name}", f"the records of {point.value} cannot be found: {error}"
            )
            continue
        stores.append(FileStore(folder, read_only=True))
    return stores


@cache
def default_store() -> Store:
    """Return the store of `DEJAVU_CACHE_URL`, or of the user's cache directory if that is unset."""
    settings = current_settings()
    return open_store(settings.url or settings.default_url)


def as_tiers(store: Store | str | os.PathLike[str] | None) -> TieredStore:
    """Return the tiers that a launch reads: shipped records, a store and this process's memory.

    With the memory as the last tier, a process can reuse its own results even if the store cannot
    be written.

    Args:
        store: the store or its URL; None stands for the default store.
    """
    if isinstance(store, os.PathLike):  # it may have characters that mean more in a URL
        store = open_store(expand_home(store).absolute().as_uri())
    elif not isinstance(store, Store):
        store = default_store() if store is None else open_store(store)
    shipped = shipped_stores() if current_settings().shipped else []
    return TieredStore([*shipped, *tiers_of(store), MemoryStore()])
