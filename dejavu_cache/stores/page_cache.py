"""The files of a folder of records, each parsed once for each of its states.

Keep indexes of large files of records in the user's cache folder.

A launch without a record of its own asks for the nearest scenario. In a new process, cutting a file
of ten thousand records for that takes some 30 ms, and reading its index less than one. An index
counts for one state of its file; whoever replaces the file writes another one.

Find, read and write files for `stores.file`, and report on failures.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from ..errors import DamagedRecordsError, StoreError
from ..model.record import Record
from ..model.scenario import Context, Scenario
from ..model.scenario_index import NearbyScenarios, ScenarioIndex
from ..system.fork_lock import ForkLock
from ..system.safe_files import open_regular, read_file, replace_file, user_folder
from .file_layout import FileBlocks, Page, find

__all__ = [
    "WORTHWHILE",
    "IndexFiles",
    "PageCache",
    "Signature",
    "describe_failure",
    "differ_in_case_alone",
    "find_files",
    "folder_name",
    "read_text",
    "signature_of",
    "write_text",
]


WORTHWHILE = 256
"""Least number of records of a file whose index is kept; cutting fewer takes about 1 ms."""

Signature = tuple[int, int, int]
"""Modification time, size and inode of a file."""


class IndexFiles:
    """Indexes of files of records, in memory and in the user's cache folder."""

    def __init__(self) -> None:
        """Begin with nothing in memory."""
        self._indexes: dict[Path, tuple[Signature, ScenarioIndex]] = {}

    def get(self, path: Path, signature: Signature) -> ScenarioIndex | None:
        """Return the index of one state of a file, or None."""
        cached = self._indexes.get(path)
        if cached is not None and cached[0] == signature:
            return cached[1]
        index = _load(path, signature)
        if index is not None:
            self._indexes[path] = signature, index
        return index

    def add(self, path: Path, signature: Signature, texts: Collection[str]) -> ScenarioIndex:
        """Index the scenarios of one state of a file; write that down if it is worthwhile."""
        index = ScenarioIndex(texts)
        self._indexes[path] = signature, index
        if len(texts) >= WORTHWHILE:
            head = json.dumps(_head(path, signature)).encode()
            with suppress(OSError):
                replace_file(_index_path(path), head + b"\n" + index.pack(), mode=0o600)
        return index


def _load(path: Path, signature: Signature) -> ScenarioIndex | None:
    try:
        head, _, packed = read_file(_index_path(path)).partition(b"\n")
        if json.loads(head) != _head(path, signature):
            return None
        return ScenarioIndex.unpack(packed)
    except (OSError, ValueError):
        return None


def _head(path: Path, signature: Signature) -> list[object]:
    return [1, str(path), *signature]


def _index_path(path: Path) -> Path:
    name = hashlib.sha256(str(path).encode()).hexdigest()[:32]
    return user_folder("indexes") / name


_ERRORS_OF_FOREIGN_FILES = {errno.ELOOP, errno.EINVAL, errno.EFBIG, errno.ENXIO}
"""Errors of opening a link, a device, a file that is too large, and a socket."""

_REMEDIES = {
    errno.EACCES: "give this user access, or point DEJAVU_CACHE_URL elsewhere",
    errno.EPERM: "give this user access, or point DEJAVU_CACHE_URL elsewhere",
    errno.EROFS: "the file system is read-only: add ?read_only=1 to its URL, "
    "or point DEJAVU_CACHE_URL elsewhere",
    errno.ENOSPC: "the disk is full: make room; what was there before is untouched",
    errno.EDQUOT: "the quota is used up: make room; what was there before is untouched",
    errno.EFBIG: "delete records that are not needed; what was there before is untouched",
    errno.ENOTDIR: "a file stands where a folder is needed",
    errno.EEXIST: "a file stands where a folder is needed",
    errno.EISDIR: "a folder stands where a file is needed",
    errno.ELOOP: "a symbolic link stands there, and links are not followed: "
    "replace it by what it points to",
}


def read_text(path: Path, root: Path) -> str:
    """Return the text of a file in a store's folder.

    Raises:
        DamagedRecordsError: it is not text, or something that no store wrote: a link, a pipe, …
        OSError: it cannot be read.
    """
    try:
        content = read_file(path, root)
        if b"\0" in content:  # a sparse file of any length costs nothing on the disk
            raise DamagedRecordsError(f"{path} is damaged: it has NUL bytes")
        return content.decode()
    except UnicodeDecodeError as error:
        raise DamagedRecordsError(f"{path} is damaged: {error}") from None
    except OSError as error:
        if error.errno in _ERRORS_OF_FOREIGN_FILES and error.filename in (path.name, str(path)):
            raise DamagedRecordsError(f"{path} is no file of records: {error.strerror}") from None
        raise


def write_text(path: Path, text: str, root: Path) -> None:
    """Write a file in a store's folder atomically and durably.

    Raises:
        StoreError: the file cannot be written; an earlier one is unchanged.
    """
    try:
        replace_file(path, text.encode(), root)
    except OSError as error:
        raise describe_failure(error, path, "written") from error


def describe_failure(error: OSError, path: Path, action: str) -> StoreError:
    """Return a store's error for a failed access, with a remedy where one is known.

    Args:
        error: the operating system's error.
        path: the file or folder.
        action: a participle that completes "PATH cannot be ...", such as "read".
    """
    remedy = _REMEDIES.get(error.errno or 0, "")
    return StoreError(
        f"{path} cannot be {action}: {error.strerror or error}{'; ' + remedy if remedy else ''}"
    )


def find_files(
    root: Path, ending: str, *, except_for: str | None = None
) -> list[tuple[Path, OSError | None]]:
    """Return the files below a folder in order, with None, and the folders that cannot be listed.

    Args:
        root: the folder; it need not exist. Hidden folders in it are left out.
        ending: how the files' names end.
        except_for: a longer ending of files to leave out.
    """
    errors: list[OSError] = []
    paths: list[tuple[Path, OSError | None]] = []
    for parent, folders, names in os.walk(root, onerror=errors.append):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if name.endswith(ending) and not (except_for and name.endswith(except_for)):
                paths.append((Path(parent, name), None))
    for error in errors:
        if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
            paths.append((Path(error.filename), error))
    return sorted(paths, key=lambda found: found[0])


def folder_name(name: str) -> str:
    """Return a name as a folder's name that people recognise and every file system accepts."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:120] or "_"


def differ_in_case_alone(path: Path, other: Path) -> bool:
    """Return whether two paths are one file, of a file system that ignores the case of names.

    There, the folder of `pkg.Add` is the folder of `pkg.add` too.
    """
    is_alike = str(path).casefold() == str(other).casefold()
    return is_alike and path.exists() and path.samefile(other)


def signature_of(path: Path) -> Signature:
    """Return what tells a file from its earlier states.

    Raises:
        OSError: there is no such file, or it cannot be looked at.
    """
    stat = path.lstat()
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


class PageCache:
    """Pages of a folder's files, read again only if a file has changed. Thread-safe.

    Attributes:
        lock: held by whoever changes a file and the page of it together.
    """

    def __init__(self, root: Path) -> None:
        """Begin without pages; `root` is the folder that no path may lead out of."""
        self.lock = ForkLock()
        self._root = root
        self._pages: dict[Path, tuple[Signature, Page]] = {}
        self._indexes = IndexFiles()

    def get(self, path: Path, context: Context) -> Page | None:
        """Return a file's page, or None if there is no file.

        Raises:
            DamagedRecordsError: the file is damaged, or has records of another context.
            StoreError: the file cannot be read.
        """
        with self.lock:
            try:
                signature = signature_of(path)
            except (FileNotFoundError, NotADirectoryError):
                self.forget(path)
                return None
            except OSError as error:
                raise describe_failure(error, path, "read") from error
            cached = self._pages.get(path)
            if cached is None or cached[0] != signature:
                try:
                    page = self._read(path, context)
                except FileNotFoundError:  # another process has just set it aside or deleted it
                    self.forget(path)
                    return None
                self._pages[path] = cached = (signature, page)
            return cached[1]

    def put(self, path: Path, page: Page) -> None:
        """Remember the page that was just written to a file, and index a large one."""
        with self.lock:
            try:
                signature = signature_of(path)
            except OSError:  # What was written is durable, whether or not it can be looked at now.
                self.forget(path)
                return
            self._pages[path] = signature, page
            if len(page) >= WORTHWHILE:
                self._indexes.add(path, signature, page.scenario_texts())

    def forget(self, path: Path) -> None:
        """Read a file again when it is next asked for."""
        with self.lock:
            self._pages.pop(path, None)

    def find(self, path: Path, context: Context, scenario: Scenario) -> Record | None:
        """Return a record, or None; a file that was not read before is bisected, and not parsed.

        Raises:
            DamagedRecordsError: the file is damaged, or has records of another context.
            StoreError: the file cannot be read.
        """
        record = self._bisect(path, context, scenario)
        if record is None and not self._is_surely_absent(path, scenario):
            page = self.get(path, context)
            record = page.get(scenario, str(path)) if page else None
        return record

    def index(self, path: Path, context: Context) -> NearbyScenarios:
        """Return the index of a file's scenarios; that of a large file comes from the disk.

        Raises:
            DamagedRecordsError: the file is damaged, or has records of another context.
            StoreError: the file cannot be read.
        """
        index = self._existing_index(path)
        if index is not None:
            return index
        with self.lock:
            page = self.get(path, context)
            if page is None:
                return ScenarioIndex()
            return self._indexes.add(path, self._pages[path][0], list(page.scenario_texts()))

    def _existing_index(self, path: Path) -> ScenarioIndex | None:
        try:
            return self._indexes.get(path, signature_of(path))
        except OSError:
            return None

    def _is_surely_absent(self, path: Path, scenario: Scenario) -> bool:
        """Return whether an index shows, without reading the file, that it lacks a scenario."""
        if path in self._pages:
            return False
        index = self._existing_index(path)
        return index is not None and scenario not in index

    def _bisect(self, path: Path, context: Context, scenario: Scenario) -> Record | None:
        """Return a record by bisection of its file, or None; a file in memory is not bisected."""
        if path in self._pages:
            return None
        try:
            with open(open_regular(self._root, path), "rb") as file:
                return find(FileBlocks(file.fileno()), context, scenario, str(path))
        except (OSError, ValueError):
            # The file is absent, changes or is unreadable; the caller reads it next and says which.
            return None

    def _read(self, path: Path, context: Context) -> Page:
        try:
            page = Page.parse(read_text(path, self._root), str(path))
        except FileNotFoundError:
            raise
        except OSError as error:
            raise describe_failure(error, path, "read") from error
        if page.context != context:
            raise DamagedRecordsError(
                f"{path} holds records of another context: {page.context.kernel.name}"
            )
        return page
