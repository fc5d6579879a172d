"""A store in a folder: one file per kernel, environment and problem, for people and for git."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from mmap import ACCESS_READ, mmap
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from ..errors import DamagedRecordsError, StoreError
from ..model.decision_tree import Tree
from ..model.foreign_result import ForeignResult, format_foreign_results, parse_foreign_results
from ..model.merge import OnConflict
from ..model.record import Record
from ..model.scenario import Context, Scenario
from ..notices import warn_once
from .base import Found, FoundTree, Store
from .file_layout import Page, find, read_context

__all__ = ["FileStore"]

_LOCKS = ".locks"
_TREE = ".tree.json"
_WRITE_WAIT = 30.0
"""Seconds to wait for another writer of the same file: writers hold it for milliseconds."""

_Signature = tuple[int, int, int]


class FileStore(Store):
    """Records in a folder: `file:///path`, or a bare path; `?read_only=1` never writes.

    A file lies at `KERNEL/DEVICE/triton-VERSION/METHOD-DIGEST.json`. Writers of one file take turns
    under a lock, merge with what is there, and replace the file in one step that reaches the disk
    before it counts. What cannot be read is set aside under a name that says so, never overwritten.
    A decision tree lies beside the records that it was fitted on, as `METHOD-DIGEST.tree.json`; what other
    tools found, in `.imported`.

    The folder need not exist: it is made by the first write.
    """

    def __init__(self, root: str | os.PathLike[str], *, read_only: bool = False) -> None:
        self.root = Path(root).expanduser().absolute()
        self.read_only = read_only
        self.url = self.root.as_uri() + ("?read_only=1" if read_only else "")
        self._pages: dict[Path, tuple[_Signature, Page]] = {}
        self._lock = threading.RLock()

    def path(self, context: Context) -> Path:
        """Where a context's records lie."""
        environment, problem = context.environment, context.problem
        method = _slug(problem.method.partition(":")[0])
        folders = (context.kernel.name, environment.device.name, f"triton-{environment.triton}")
        return self.root.joinpath(*map(_slug, folders), f"{method}-{context.digest}.json")

    def get(self, context: Context, scenario: Scenario, *, fresh: bool = False) -> Found | None:
        path = self.path(context)
        try:
            record = self._found_alone(path, context, scenario)
            if record is None and (page := self._page(path, context)):
                record = page.get(scenario, str(path))
        except DamagedRecordsError as error:
            self._set_aside(path, str(error))
            return None
        return Found(record, self.url) if record else None

    def records(self, context: Context) -> Iterator[Record]:
        path = self.path(context)
        try:
            page = self._page(path, context)
            return iter(list(page.records(str(path))) if page else ())
        except DamagedRecordsError as error:
            self._set_aside(path, str(error))
            return iter(())

    def contexts(self, kernel: str | None = None) -> Iterator[Context]:
        found = []
        for path, context in self._files("" if kernel is None else _slug(kernel)):
            if isinstance(context, Exception):
                warn_once(f"{path}", f"{path} is passed over: {context}")
            elif kernel in (None, context.kernel.name):
                found.append(context)
        return iter(sorted(found, key=lambda context: context.text))

    def unreadable(self) -> dict[Path, str]:
        """The files that are passed over, and why: newer, damaged, or in a place that is not theirs."""
        return {
            path: str(context) for path, context in self._files() if isinstance(context, Exception)
        }

    def _files(self, folder: str = "") -> Iterator[tuple[Path, Context | Exception]]:
        for path in sorted((self.root / folder).rglob("*.json")):
            if path.name.endswith(_TREE):
                continue
            try:
                with path.open(encoding="utf-8") as file:
                    context = read_context(file, str(path))
                if self.path(context) != path:
                    raise StoreError(f"it belongs at {self.path(context).relative_to(self.root)}")
                yield path, context
            except (StoreError, OSError, UnicodeDecodeError) as error:
                yield path, error

    def trees(self, kernel: str | None = None) -> Iterator[FoundTree]:
        for path in sorted(
            (self.root / ("" if kernel is None else _slug(kernel))).rglob(f"*{_TREE}")
        ):
            try:
                tree = Tree.parse(path.read_text(encoding="utf-8"), str(path))
            except (StoreError, OSError, UnicodeDecodeError) as error:
                warn_once(f"{path}", f"{path} is passed over: {error}")
                continue
            if kernel in (None, tree.context.kernel.name):
                yield FoundTree(tree, path.as_uri())

    def put_tree(self, tree: Tree) -> str:
        self._refuse_if_read_only()
        path = self.path(tree.context).with_suffix(_TREE)
        self._write(path, tree.text)
        return path.as_uri()

    def delete_tree(self, context: Context) -> bool:
        """Remove the tree's file."""
        self._refuse_if_read_only()
        path = self.path(context).with_suffix(_TREE)
        existed = path.exists()
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise _explained(error, path, "removed") from error
        return existed

    def imported(self, function: str) -> Iterator[ForeignResult]:
        path = self._imported_path(function)
        try:
            return iter(parse_foreign_results(path.read_text(encoding="utf-8"), str(path)))
        except FileNotFoundError:
            return iter(())
        except (StoreError, OSError, UnicodeDecodeError) as error:
            warn_once(f"{path}", f"{path} is passed over: {error}")
            return iter(())

    def put_imported(self, entries: Iterable[ForeignResult]) -> None:
        self._refuse_if_read_only()
        by_function: dict[str, list[ForeignResult]] = {}
        for entry in entries:
            by_function.setdefault(entry.function, []).append(entry)
        for function, found in by_function.items():
            self._write(
                self._imported_path(function),
                format_foreign_results([*self.imported(function), *found]),
            )

    def _imported_path(self, function: str) -> Path:
        return self.root / ".imported" / f"{_slug(function)}.jsonl"

    def put(
        self, context: Context, records: Iterable[Record], on_conflict: OnConflict = "newest"
    ) -> None:
        self._refuse_if_read_only()
        records = list(records)
        with self._writing(context) as (path, page):
            try:
                changed = page.merge(records, on_conflict, str(path))
            except DamagedRecordsError as error:
                self._set_aside(path, str(error))
                page = Page(context)
                changed = page.merge(records, on_conflict, str(path))
            if changed:
                self._replace(path, page)

    def delete(self, context: Context, scenarios: Iterable[Scenario] | None = None) -> int:
        self._refuse_if_read_only()
        if not self.path(context).exists():
            return 0
        with self._writing(context) as (path, page):
            dropped = page.drop(scenarios)
            if dropped and len(page):
                self._replace(path, page)
            elif dropped:
                path.unlink(missing_ok=True)
                self._pages.pop(path, None)
            return dropped

    @contextmanager
    def lease(self, context: Context, scenario: Scenario, *, wait: float) -> Iterator[bool]:
        if self.read_only:
            yield True
            return
        try:
            lock = self._acquire(f"{context.digest}-{scenario.digest}.lease", wait)
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
            lock.release()

    def set_aside(self) -> list[Path]:
        """The files that were found damaged and moved out of the way."""
        return sorted(self.root.rglob("*.json.damaged-*"))

    def sweep(self, older_than: float = 86_400.0) -> int:
        """Removes what killed writers left, once it is `older_than` seconds old, and says how many files went."""
        litter = [*(self.root / _LOCKS).glob("*.lease"), *self.root.rglob("*.json.tmp-*")]
        old = [path for path in litter if time.time() - path.stat().st_mtime > older_than]
        for path in old:
            path.unlink(missing_ok=True)
        return len(old)

    def _found_alone(self, path: Path, context: Context, scenario: Scenario) -> Record | None:
        """A record, if it can be found without reading the file whole; a file that was read before need not be."""
        if path in self._pages:
            return None
        try:
            with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as held:
                return find(held, context, scenario, str(path))
        except (OSError, ValueError):  # absent, empty, or not to be read: the whole read says which
            return None

    def _page(self, path: Path, context: Context) -> Page | None:
        """The file's content, read again only if the file has changed."""
        with self._lock:
            try:
                signature = _signature(path)
            except (FileNotFoundError, NotADirectoryError):
                self._pages.pop(path, None)
                return None
            except OSError as error:
                raise _explained(error, path, "read") from error
            known = self._pages.get(path)
            if known is None or known[0] != signature:
                self._pages[path] = known = (signature, self._read(path, context))
            return known[1]

    def _read(self, path: Path, context: Context) -> Page:
        try:
            page = Page.parse(path.read_text(encoding="utf-8"), str(path))
        except UnicodeDecodeError as error:
            raise DamagedRecordsError(f"{path} is damaged: {error}") from None
        except OSError as error:
            raise _explained(error, path, "read") from error
        if page.context != context:
            raise DamagedRecordsError(
                f"{path} holds records of another context: {page.context.kernel.name}"
            )
        return page

    @contextmanager
    def _writing(self, context: Context) -> Iterator[tuple[Path, Page]]:
        """The file's path and content, while nobody else writes it."""
        path = self.path(context)
        try:
            lock = self._acquire(f"{context.digest}.lock", _WRITE_WAIT)
        except Timeout:
            raise StoreError(
                f"{path} has been locked by another writer for {_WRITE_WAIT:.0f} s"
            ) from None
        except OSError as error:
            raise _explained(error, self.root, "written") from error
        with self._lock:
            try:
                yield path, self._page_to_write(path, context)
            except BaseException:
                self._pages.pop(path, None)
                raise
            finally:
                lock.release()

    def _page_to_write(self, path: Path, context: Context) -> Page:
        try:
            return self._page(path, context) or Page(context)
        except DamagedRecordsError as error:
            self._set_aside(path, str(error))
            return Page(context)

    def _acquire(self, name: str, wait: float) -> BaseFileLock:
        folder = self.root / _LOCKS
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock: BaseFileLock = FileLock(folder / name, timeout=wait)
            lock.acquire()
        except (NotImplementedError, OSError) as error:
            if isinstance(error, Timeout) or getattr(error, "errno", errno.ENOSYS) not in _NO_LOCKS:
                raise
            lock = SoftFileLock(folder / f"{name}.soft", timeout=wait)
            lock.acquire()
        return lock

    def _replace(self, path: Path, page: Page) -> None:
        self._write(path, page.text)
        self._pages[path] = (_signature(path), page)

    def _write(self, path: Path, text: str) -> None:
        """Writes a file anew: first beside it, and to the disk, then in its place in one step."""
        temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}-{threading.get_ident()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            _sync_folder(path.parent)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise _explained(error, path, "written") from error

    def _set_aside(self, path: Path, why: str) -> None:
        """Moves a file that cannot be read out of the way, and says so once."""
        with self._lock:
            self._pages.pop(path, None)
            if self.read_only:
                warn_once(
                    f"{path}",
                    f"{why}; the store is read-only, so the file stays and is passed over",
                )
                return
            aside = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
            try:
                os.replace(path, aside)
            except FileNotFoundError:
                return
            except OSError as error:
                raise _explained(error, path, "set aside") from error
            warn_once(f"{path}", f"{why}; it is kept as {aside.name}")


_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL}

_REMEDIES = {
    errno.EACCES: "give this user access, or point DEJAVU_CACHE_URL elsewhere",
    errno.EPERM: "give this user access, or point DEJAVU_CACHE_URL elsewhere",
    errno.EROFS: "the file system is read-only: add ?read_only=1 to its URL, or point DEJAVU_CACHE_URL elsewhere",
    errno.ENOSPC: "the disk is full: make room; what was there before is untouched",
    errno.EDQUOT: "the quota is used up: make room; what was there before is untouched",
    errno.ENOTDIR: "a file stands where a folder is needed",
    errno.EISDIR: "a folder stands where a file is needed",
}


def _explained(error: OSError, path: Path, what: str) -> StoreError:
    remedy = _REMEDIES.get(error.errno or 0, "")
    return StoreError(
        f"{path} cannot be {what}: {error.strerror or error}{'; ' + remedy if remedy else ''}"
    )


def _slug(name: str) -> str:
    """A folder's name that a person recognises and no file system refuses."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:120] or "_"


def _signature(path: Path) -> _Signature:
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
