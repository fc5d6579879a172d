"""Store in a folder, with one readable file per kernel, environment and problem.

Files of a store's folder that hold results of other autotuners, one per function.

Delete what killed writers left in a store's folder, or beside another file.
"""

from __future__ import annotations

import glob
import os
import re
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from filelock import Timeout

from ..errors import DamagedRecordsError, StoreError
from ..model.decision_tree import Tree
from ..model.foreign_result import ForeignResult, format_foreign_results, parse_foreign_results
from ..model.merge import OnConflict
from ..model.record import Record
from ..model.scenario import Context, Scenario
from ..model.scenario_index import NearbyScenarios, ScenarioIndex
from ..system.notices import warn_once
from ..system.safe_files import expand_home, open_folder, open_regular
from .base import Found, FoundTree, Store
from .file_layout import HEAD_BYTES, Page, context_of_head
from .file_locks import LOCKS, FileLocks, acquire_lock, release_lock
from .page_cache import (
    PageCache,
    describe_failure,
    differ_in_case_alone,
    find_files,
    folder_name,
    read_text,
    signature_of,
    write_text,
)

__all__ = [
    "FileStore",
    "ImportedFiles",
    "delete_leftovers",
    "delete_unfinished",
]


class ImportedFiles:
    """The folder `.imported` of a store's folder.

    Args:
        root: the store's folder.
        locks: the store's locks.
    """

    def __init__(self, root: Path, locks: FileLocks) -> None:
        """Read and write nothing yet."""
        self._root = root
        self._locks = locks

    def read(self, function: str) -> list[ForeignResult]:
        """Return a function's results; warn if they cannot be read."""
        path = self._path(function)
        try:
            results = parse_foreign_results(read_text(path, self._root), str(path))
            return [result for result in results if result.function == function]
        except FileNotFoundError:
            return []
        except (StoreError, OSError, UnicodeDecodeError) as error:
            warn_once(f"{path}", f"{path} is passed over: {error}")
            return []

    def add(self, entries: Iterable[ForeignResult]) -> None:
        """Add results to their functions' files, under their locks.

        Raises:
            StoreError: a file cannot be written, or not be read: it stays as it is.
        """
        by_function: dict[str, list[ForeignResult]] = {}
        for entry in entries:
            by_function.setdefault(entry.function, []).append(entry)
        for function, results in by_function.items():
            path = self._path(function)
            with self._locks.write(path, f"imported-{path.stem}.lock"):
                try:
                    earlier = parse_foreign_results(read_text(path, self._root), str(path))
                except FileNotFoundError:
                    earlier = []
                except OSError as error:  # What cannot be read must not be replaced.
                    raise describe_failure(error, path, "read") from error
                write_text(path, format_foreign_results([*earlier, *results]), self._root)

    def _path(self, function: str) -> Path:
        return self._root / ".imported" / f"{folder_name(function)}.jsonl"


_TEMPORARY = re.compile(r"\.tmp-\d+-[0-9a-f]{16}$")
"""End of the name of a file that its writer had not finished; `safe_files` gives such names."""


def delete_leftovers(root: Path, age: float) -> int:
    """Delete unfinished files, leases and soft locks of at least an age; return their number.

    Args:
        root: the store's folder; links in it are not followed.
        age: in seconds.
    """
    return sum(_delete_if_old(root, path, age) for path in _leftovers(root))


def delete_unfinished(file: Path, age: float = 3600.0) -> None:
    """Delete what killed writers of a file left beside it and have not touched for some seconds."""
    for path in file.parent.glob(f"{glob.escape(file.name)}.tmp-*"):
        if _TEMPORARY.search(path.name):
            _delete_if_old(file.parent, path, age)


def _leftovers(root: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(root):
        holds_locks = Path(parent) == root / LOCKS
        for name in names:
            if (holds_locks and name.endswith((".lease", ".soft"))) or _TEMPORARY.search(name):
                yield Path(parent, name)


def _delete_if_old(root: Path, path: Path, age: float) -> bool:
    try:
        with open_folder(root, path.parent) as folder:
            status = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
            if time.time() - status.st_mtime <= age:
                return False
            os.unlink(path.name, dir_fd=folder)
    except OSError:  # its writer was quicker, or a link is in the way
        return False
    return True


_TREE = ".tree.json"

T = TypeVar("T")


class FileStore(Store):
    """Records in a folder: `file:///path`, or a bare path; `?read_only=1` never writes.

    The path of a file is `KERNEL/DEVICE/triton-VERSION/METHOD-DIGEST.json`. Writers take turns
    under the file's lock, merge their records with those in the file, and replace it atomically and
    durably. A damaged file is renamed, never overwritten, and a damaged record costs only itself. A
    decision tree is the file `METHOD-DIGEST.tree.json` beside the records it was fitted to. Results
    of other autotuners are in `.imported`.

    The first write creates the folder.
    """

    def __init__(self, root: str | os.PathLike[str], *, read_only: bool = False) -> None:
        """Open a folder, which need not exist.

        Args:
            root: the folder.
            read_only: whether writes are refused.
        """
        self.root = expand_home(root).absolute()
        self.read_only = read_only
        self.url = self.root.as_uri() + ("?read_only=1" if read_only else "")
        self._pages = PageCache(self.root)
        self._locks = FileLocks(self.root)
        self._imported = ImportedFiles(self.root, self._locks)

    def path(self, context: Context) -> Path:
        """Return the path of a context's records."""
        environment, problem = context.environment, context.problem
        method = folder_name(problem.method.partition(":")[0])
        folders = (context.kernel.name, environment.device.name, f"triton-{environment.triton}")
        return self.root.joinpath(*map(folder_name, folders), f"{method}-{context.digest}.json")

    def get(self, context: Context, scenario: Scenario, *, fresh: bool = False) -> Found | None:
        """Return a scenario's record; a file that was not read before is bisected."""
        record = self._read(context, lambda path: self._pages.find(path, context, scenario), None)
        return Found(record, self.url) if record else None

    def records(self, context: Context) -> Iterator[Record]:
        """Return a context's records; a damaged file counts as empty."""
        page = self._read(context, lambda path: self._pages.get(path, context), None)
        return page.records(str(self.path(context))) if page else iter(())

    def scenario_texts(self, context: Context) -> Iterator[str]:
        """Return the scenarios of a context's file without parsing its records."""
        page = self._read(context, lambda path: self._pages.get(path, context), None)
        return iter(page.scenario_texts() if page else ())

    def scenario_index(self, context: Context) -> NearbyScenarios:
        """Return the index of a context's file; that of a large file comes from the disk."""
        nothing: NearbyScenarios = ScenarioIndex()
        return self._read(context, lambda path: self._pages.index(path, context), nothing)

    def _read(self, context: Context, read: Callable[[Path], T], otherwise: T) -> T:
        """Return what a function reads from a context's file; set the file aside if damaged."""
        path = self.path(context)
        try:
            return read(path)
        except DamagedRecordsError as error:
            self._set_aside(path, context, str(error))
            return otherwise

    def revision(self, context: Context) -> Hashable | None:
        """Return what tells a context's file from its earlier states; `()` if there is none."""
        try:
            return signature_of(self.path(context))
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError:
            return None

    def contexts(self, kernel: str | None = None) -> Iterator[Context]:
        """Return the contexts of all files that can be read, and warn about the others."""
        contexts = []
        for path, context in self._files("" if kernel is None else folder_name(kernel)):
            if isinstance(context, Exception):
                warn_once(f"{path}", f"{path} is passed over: {context}")
            elif kernel in (None, context.kernel.name):
                contexts.append(context)
        return iter(sorted(contexts, key=lambda context: context.text))

    def unreadable(self) -> dict[Path, str]:
        """Return why files are ignored: a newer format, damage, or a path of another context."""
        reasons = {path: self._fault(path, context) for path, context in self._files()}
        return {path: reason for path, reason in reasons.items() if reason}

    def why_unreadable(self) -> str:
        """Return why no file can be read; an empty text if one can, or if there is none."""
        first = ""
        for path, context in self._files():
            if not isinstance(context, Exception):
                return ""
            first = first or f"{path}: {context}"
        return first

    def _fault(self, path: Path, context: Context | Exception) -> str:
        if isinstance(context, Exception):
            return str(context)
        try:
            self._pages.get(path, context)
        except StoreError as error:
            return str(error)
        return ""

    def damaged_records(self) -> dict[Path, list[str]]:
        """Return what is wrong with records that are damaged in files that can be read."""
        damages = {}
        for path, context in self._files():
            if isinstance(context, Exception):
                continue
            with suppress(StoreError):  # `unreadable` names it
                page = self._pages.get(path, context)
                if page is not None and (problems := page.damages()):
                    damages[path] = problems
        return damages

    def _files(self, folder: str = "") -> Iterator[tuple[Path, Context | Exception]]:
        for path, unlisted in find_files(self.root / folder, ".json", except_for=_TREE):
            if unlisted is not None:
                yield path, unlisted
                continue
            try:
                context = self._context_of(path)
                expected = self.path(context)
                if expected != path and not differ_in_case_alone(expected, path):
                    raise StoreError(f"it belongs at {expected.relative_to(self.root)}")
                yield path, context
            except (StoreError, OSError, UnicodeDecodeError) as error:
                yield path, error

    def _context_of(self, path: Path) -> Context:
        with open(open_regular(self.root, path), "rb") as file:
            context = context_of_head(file.read(HEAD_BYTES), str(path))
        return context or Page.parse(read_text(path, self.root), str(path)).context

    def trees(self, kernel: str | None = None) -> Iterator[FoundTree]:
        """Yield the decision trees that can be read, and warn about the others."""
        for path, tree in self._trees("" if kernel is None else folder_name(kernel)):
            if isinstance(tree, Exception):
                warn_once(f"{path}", f"{path} is passed over: {tree}")
            elif kernel in (None, tree.context.kernel.name):
                yield FoundTree(tree, path.as_uri())

    def unreadable_trees(self) -> dict[Path, str]:
        """Return why files of decision trees are passed over."""
        return {path: str(tree) for path, tree in self._trees() if isinstance(tree, Exception)}

    def _trees(self, folder: str = "") -> Iterator[tuple[Path, Tree | Exception]]:
        for path, unlisted in find_files(self.root / folder, _TREE):
            if unlisted is not None:
                yield path, unlisted
                continue
            try:
                yield path, Tree.parse(read_text(path, self.root), str(path))
            except (StoreError, OSError) as error:
                yield path, error

    def put_tree(self, tree: Tree) -> str:
        """Write the tree's file, beside the records of its context."""
        self._refuse_if_read_only()
        path = self.path(tree.context).with_suffix(_TREE)
        write_text(path, tree.text, self.root)
        return path.as_uri()

    def delete_tree(self, context: Context) -> bool:
        """Remove the tree's file."""
        self._refuse_if_read_only()
        path = self.path(context).with_suffix(_TREE)
        return self._unlink(path)

    def _unlink(self, path: Path) -> bool:
        """Remove a file, and return whether it existed."""
        try:
            with open_folder(self.root, path.parent) as folder:
                os.unlink(path.name, dir_fd=folder)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise describe_failure(error, path, "removed") from error
        return True

    def imported(self, function: str) -> Iterator[ForeignResult]:
        """Return the function's results of other autotuners; warn if they cannot be read."""
        return iter(self._imported.read(function))

    def put_imported(self, entries: Iterable[ForeignResult]) -> None:
        """Add results of other autotuners to one file per function, under its lock.

        Raises:
            StoreError: a file cannot be written, or not be read: it stays as it is.
        """
        self._refuse_if_read_only()
        self._imported.add(entries)

    def put(
        self, context: Context, records: Iterable[Record], on_conflict: OnConflict = "newest"
    ) -> None:
        """Merge records into the context's file, under its lock."""
        self._refuse_if_read_only()
        records = list(records)
        with self._locked_page(context) as (path, page):
            if page.merge(records, on_conflict, str(path)):
                self._replace(path, page)

    def delete(self, context: Context, scenarios: Iterable[Scenario] | None = None) -> int:
        """Delete records under the file's lock, and the file with its last record."""
        self._refuse_if_read_only()
        if self.revision(context) == ():
            return 0
        with self._locked_page(context) as (path, page):
            dropped = page.drop(scenarios)
            if dropped:
                self._replace_or_unlink(path, page)
            return dropped

    def recall(self, context: Context, parts: Mapping[Scenario, Collection[str]]) -> None:
        """Remove parts of records under the file's lock, and the file with its last record."""
        self._refuse_if_read_only()
        if self.revision(context) != ():
            with self._locked_page(context) as (path, page):
                if page.recall(parts, str(path)):
                    self._replace_or_unlink(path, page)

    def _replace_or_unlink(self, path: Path, page: Page) -> None:
        if len(page):
            self._replace(path, page)
        else:
            self._keep_displaced(path, page)
            self._unlink(path)
            self._pages.forget(path)

    @contextmanager
    def lease(self, context: Context, scenario: Scenario, *, wait: float) -> Iterator[bool]:
        """Hold a file lock; a folder that cannot be locked or written grants every lease."""
        if self.read_only:
            yield True
            return
        try:
            lock = acquire_lock(self._locks.path(f"{context.digest}-{scenario.digest}.lease"), wait)
        except Timeout:
            yield False
            return
        except OSError as error:
            warn_once(
                f"lease {self.url}",
                f"{self.url} cannot lock ({error}): several processes may tune one scenario",
            )
            yield True
            return
        try:
            yield True
        finally:
            release_lock(lock)

    def damaged_files(self) -> list[Path]:
        """Return the damaged files that were renamed to be set aside."""
        return sorted(self.root.rglob("*.json.damaged-*"))

    def delete_leftovers(self, older_than: float = 86_400.0) -> int:
        """Delete the leftovers of killed writers, and return the number of deleted files.

        Args:
            older_than: the least age of a leftover, in seconds.
        """
        return delete_leftovers(self.root, older_than)

    @contextmanager
    def _locked_page(self, context: Context) -> Iterator[tuple[Path, Page]]:
        """Hold a file's lock, and yield the file's path and content."""
        path = self.path(context)
        with self._locks.write(path, f"{context.digest}.lock"), self._pages.lock:
            try:
                yield path, self._page_to_write(path, context)
            except BaseException:
                self._pages.forget(path)
                raise

    def _page_to_write(self, path: Path, context: Context) -> Page:
        """Return a file's content, or an empty page if there is no file or a damaged one."""
        try:
            return self._pages.get(path, context) or Page(context)
        except DamagedRecordsError as error:
            self._rename_damaged(path, str(error))
            return Page(context)

    def _replace(self, path: Path, page: Page) -> None:
        self._keep_displaced(path, page)
        write_text(path, page.text, self.root)
        page.is_cut = False
        self._pages.put(path, page)

    def _keep_displaced(self, path: Path, page: Page) -> None:
        """Write the texts of damaged records that leave a file to one beside it."""
        if page.displaced:
            aside = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
            write_text(aside, "".join(f"{{{text}\n" for text in page.displaced), self.root)
            page.displaced = []

    def _set_aside(self, path: Path, context: Context, why: str) -> None:
        """Rename a damaged file, and warn once; in a read-only store, only warn.

        A file that somebody writes now is left to them, and one that was replaced is not damaged.
        """
        self._pages.forget(path)
        if self.read_only:
            warn_once(
                f"{path}", f"{why}; the store is read-only, so the file stays and is passed over"
            )
            return
        try:
            lock = acquire_lock(self._locks.path(f"{context.digest}.lock"), 0.0)
        except Timeout:
            warn_once(
                f"locked {path}", f"{why}; another process has its lock, so it is passed over"
            )
            return
        except OSError as error:
            raise describe_failure(error, path, "set aside") from error
        try:
            with self._pages.lock:
                self._page_to_write(path, context)
        finally:
            release_lock(lock)

    def _rename_damaged(self, path: Path, why: str) -> None:
        """Rename a damaged file, whose lock is held, and warn once."""
        aside = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
        self._pages.forget(path)
        try:
            with open_folder(self.root, path.parent) as folder:
                os.replace(path.name, aside.name, src_dir_fd=folder, dst_dir_fd=folder)
        except FileNotFoundError:
            return
        except OSError as error:
            raise describe_failure(error, path, "set aside") from error
        warn_once(f"{path}", f"{why}; it is kept as {aside.name}")
