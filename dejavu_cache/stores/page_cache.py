"""The files of a folder of records, each parsed once for each of its states."""

from __future__ import annotations

from pathlib import Path

from ..errors import DamagedRecordsError
from ..model.record import Record
from ..model.scenario import Context, Scenario
from ..model.scenario_index import NearbyScenarios, ScenarioIndex
from ..system.fork_lock import ForkLock
from ..system.safe_files import open_regular
from .file_access import describe_failure, read_text
from .file_blocks import FileBlocks
from .file_layout import Page, find
from .index_files import WORTHWHILE, IndexFiles, Signature

__all__ = ["PageCache", "signature_of"]


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
