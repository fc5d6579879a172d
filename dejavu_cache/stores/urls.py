"""Open the store that a URL names, or that a process uses where a kernel names none."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from ..errors import SettingsError, did_you_mean
from ..settings import current_settings
from ..system.notices import warn_once
from ..system.safe_files import expand_home
from .base import Store
from .file import FileStore
from .manifest import MANIFEST, RECORDS, is_prewarmed
from .memory import FrozenStore, MemoryStore
from .tiered import TieredStore, tiers_of

__all__ = [
    "as_tiers",
    "check_url",
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

SHIPPED = "dejavu_cache.records"
"""Entry-point group of shipped records; an entry point is a folder, or a module in one."""


def open_store(url: str) -> Store:
    """Open the store of a URL; several URLs, separated by commas, make a tiered store.

    Args:
        url: `file:///path`, `/path`, `memory://`, `frozen:///path`, `prewarmed:///path` or a scheme
            that a package adds, such as `https://…`.

    Raises:
        SettingsError: the URL is empty or mistyped, or no installed package knows its scheme.
    """
    stores: list[Store] = []
    for scheme, part in _schemes_of(url):
        opener = _BUILT_IN.get(scheme)
        if opener is None:
            (point, *_) = entry_points(group=SCHEMES, name=scheme)
            opener = point.load()
        stores.append(opener(part))
    return stores[0] if len(stores) == 1 else TieredStore(stores)


def check_url(url: str) -> None:
    """Check that a store can be opened by a URL, as far as its text tells; nothing is opened.

    Raises:
        SettingsError: the URL is empty or mistyped, or no installed package knows its scheme.
    """
    _schemes_of(url)


def _schemes_of(url: str) -> list[tuple[str, str]]:
    """Return the scheme and the URL of each tier; a bare path is a file's.

    Raises:
        SettingsError: there is no tier, or one is mistyped or of a scheme that nothing knows.
    """
    if not isinstance(url, str):
        raise SettingsError(f"{url!r} is no URL: give a text, such as file:///folder")
    tiers = []
    for part in filter(None, map(str.strip, url.split(","))):
        _refuse_what_looks_like_a_url(part)
        try:
            scheme = urlsplit(part).scheme if "://" in part else "file"
        except ValueError as error:
            raise SettingsError(f"{part!r} is no URL: {error}") from None
        if scheme not in _BUILT_IN:
            known = sorted({*_BUILT_IN, *(point.name for point in entry_points(group=SCHEMES))})
            if scheme not in known:
                raise SettingsError(
                    f"no store knows the scheme {scheme!r} of {part!r}: "
                    f"{did_you_mean(scheme, known)}"
                )
        tiers.append((scheme, part))
    if not tiers:
        raise SettingsError(
            "no store is named: give a folder, file:///folder, memory:// or https://server"
        )
    return tiers


def make_absolute(url: str) -> str:
    """Return a URL, or several, with paths as absolute URLs, which hold in every folder.

    Raises:
        SettingsError: one of them is mistyped.
    """
    parts = [part.strip() for part in url.split(",") if part.strip()]
    for part in parts:
        _refuse_what_looks_like_a_url(part)
    return ",".join(part if "://" in part else _uri_of(part) for part in parts)


def prewarmed_folders(url: str) -> list[Path]:
    """Return the folders that a URL names as prewarmed, in order.

    Raises:
        SettingsError: one of the names is not a path.
    """
    parts = [part.strip() for part in url.split(",")]
    return [_prewarmed_path(part) for part in parts if part.startswith(f"{PREWARMED}://")]


def _refuse_what_looks_like_a_url(url: str) -> None:
    """Raise for a mistyped URL, which would otherwise be a folder of that name.

    Raises:
        SettingsError: it has a scheme without its slashes, options without a scheme, or characters
            that no path has.
    """
    if "://" in url:
        if "%00" in url:
            raise SettingsError(f"{url!r}: no path has null characters")
        return
    if scheme := re.match(r"([A-Za-z][A-Za-z0-9+.-]+):|(https?|file)//", url):
        raise SettingsError(
            f"{url!r}: write {scheme[1] or scheme[2]}://… for a URL, "
            f"or ./{url} for a folder of that name"
        )
    if "?read_only=" in url:
        raise SettingsError(f"{url!r}: a path takes no options: write file:///folder?read_only=1")


def _open_file(url: str) -> FileStore:
    if "://" not in url:
        return _file_store(expand_home(url), read_only=False)
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    read_only = options.pop("read_only", "0")
    if options or read_only not in ("0", "1"):
        raise SettingsError(f"{url!r}: a file store takes ?read_only=0 or 1 and nothing else")
    if parts.netloc not in ("", "localhost"):
        raise SettingsError(f"{url!r} names a host; write file:///folder with three slashes")
    if not parts.path or parts.fragment:
        raise SettingsError(
            f"{url!r}: a folder is named by its whole path, file:///folder, with %23 for #"
        )
    return _file_store(_path_in(parts.path), read_only=read_only == "1")


def _file_store(folder: Path, read_only: bool) -> FileStore:
    """Open a folder of records; of a prewarmed folder, the records alone are used."""
    if not is_prewarmed(folder):
        return FileStore(folder, read_only=read_only)
    warn_once(
        f"prewarmed {folder}",
        f"{folder} is a prewarmed folder, and a path serves its records alone: name it as "
        f"{PREWARMED}://{folder} in DEJAVU_CACHE_URL to load its binaries too",
    )
    return FileStore(folder / RECORDS, read_only=True)


def _open_prewarmed(url: str) -> FileStore:
    folder = _prewarmed_path(url)
    try:
        folder.stat()
        (folder / MANIFEST).stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        if Path(error.filename) == folder:
            raise SettingsError(f"{url!r}: there is no folder {folder}: correct the path") from None
        raise SettingsError(
            f"{url!r}: {folder} has no {MANIFEST}, as `dejavu-cache prewarm` makes it; "
            "write the path alone for a folder of records"
        ) from None
    except OSError as error:
        remedy = ": give this user access to it" if isinstance(error, PermissionError) else ""
        raise SettingsError(f"{url!r}: {folder} cannot be read: {error.strerror}{remedy}") from None
    return FileStore(folder / RECORDS, read_only=True)


def _open_frozen(url: str) -> FrozenStore:
    return FrozenStore(_whole_path(url, "a snapshot", "frozen:///folder/DIGEST.jsonl"))


def _prewarmed_path(url: str) -> Path:
    return _whole_path(url, "a prewarmed folder", f"{PREWARMED}:///folder")


def _whole_path(url: str, what: str, example: str) -> Path:
    parts = urlsplit(url)
    if parts.netloc or parts.query or not parts.path:
        raise SettingsError(f"{url!r}: {what} is named by its path: {example}")
    return _path_in(parts.path)


def _path_in(quoted: str) -> Path:
    """Return the path in a URL, whose bytes need not be UTF-8."""
    return Path(unquote(quoted, errors="surrogateescape"))


_BUILT_IN: dict[str, Callable[[str], Store]] = {
    "file": _open_file,
    "memory": lambda _: MemoryStore(),
    "frozen": _open_frozen,
    PREWARMED: _open_prewarmed,
}


@cache
def _shipped_points(path: tuple[str, ...]) -> list[EntryPoint]:
    """Return the entry points of shipped records; reading all packages' metadata takes long.

    Args:
        path: the current `sys.path`, by which packages are found.
    """
    return sorted(entry_points(group=SHIPPED), key=lambda point: point.name)


def _folder_of(point: EntryPoint) -> Path:
    """Return the folder that an entry point names.

    A module's is found without importing it, which would import the packages around it, too.
    """
    package, *inner = point.module.split(".")
    spec = None if point.attr else find_spec(package)
    for location in (spec.submodule_search_locations if spec else None) or ():
        folder = Path(location, *inner)
        if folder.is_dir():
            return folder
    target = point.load()
    return Path(target if isinstance(target, (str, Path)) else target.__path__[0])


def shipped_stores() -> list[Store]:
    """Open the records that installed packages ship, for reading only.

    A package ships records by an entry point in the group `dejavu_cache.records`. Its object is the
    path of a folder, or a module whose folder contains the records.
    """
    stores: list[Store] = []
    for point in _shipped_points(tuple(sys.path)):
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
    be written. Shipped records are left out before a frozen snapshot, because an upgrade of the
    package that ships them would change the results.

    Args:
        store: the store or its URL; None stands for the default store.
    """
    if store is None:
        home = default_store()
    elif isinstance(store, Store):
        home = store
    else:  # a path may have characters, such as commas, that mean more in a URL
        home = open_store(store if isinstance(store, str) else _uri_of(store))
    tiers = tiers_of(home)
    frozen = any(isinstance(tier, FrozenStore) for tier in tiers)
    shipped = shipped_stores() if current_settings().shipped and not frozen else []
    return TieredStore([*shipped, *tiers, MemoryStore()])


def _uri_of(path: str | os.PathLike[str]) -> str:
    return expand_home(path).absolute().as_uri()
