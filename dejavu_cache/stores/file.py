"""Store in a folder, with one readable file per kernel, environment and problem.

Others may change the folder at any moment. Links to it are followed, links in it are not.
"""

import errno
import os
import re
import time
import zlib
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from ..errors import DamagedRecordsError, StoreError
from ..model.record import Record
from ..model.scenario import Context, Scenario
from ..system.fork_lock import ForkLock
from ..system.notices import warn_once
from ..system.safe_files import expand_home, open_folder, open_to_read, read_file, replace_file
from .base import Found, Store
from .file_layout import Page, find_place, find_places, read_context, read_place

_LOCKS = ".locks"
"""Name of the folder of locks."""

_WAIT = 30.0
"""Seconds to wait for another writer of the same file; a write takes milliseconds."""

_WAIT_AGAIN = 0.1
"""Seconds to wait for a writer that was waited for in vain, until it has let go."""

_NO_ACCESS = "give this user access, or point DEJAVU_CACHE_URL elsewhere"
_REMEDIES = {
    errno.EACCES: _NO_ACCESS,
    errno.EPERM: _NO_ACCESS,
    errno.EROFS: "add ?read_only=1 to the URL of a file system that is read-only",
    errno.ENOSPC: "make room; what was there before is untouched",
    errno.EDQUOT: "make room; what was there before is untouched",
    errno.EFBIG: "delete records that are not needed; what was there before is untouched",
    errno.ELOOP: "links are not followed: replace it by what it points to",
}

_WITHOUT_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}
"""Answers of file systems that lock no files."""

_UNREADABLE = (OSError, ValueError, zlib.error)

_Signature = tuple[int, int, int]
"""Modification time, size and inode of a file."""


class FileStore(Store):
    """Records in a folder: `file:///path`, or a bare path; `?read_only=1` never writes.

    The path of a file is `KERNEL/DEVICE/triton-VERSION/METHOD-DIGEST.json`. Writers take turns
    under the file's lock, merge their records with those in the file, and replace it atomically and
    durably. A damaged record costs only itself, and a damaged file is kept under another name
    before it is overwritten.

    The first write creates the folder. Files may be packed, which adds `.gz` to their names; a
    write unpacks its file.
    """

    def __init__(
        self, root: str | os.PathLike[str], *, read_only: bool = False, durable: bool = True
    ) -> None:
        """Open a folder, which need not exist.

        A durable write outlasts a loss of power, and any write a killed process.
        """
        self.root = expand_home(root).absolute()
        self.read_only = read_only
        self._durable = durable
        self.url = self.root.as_uri() + ("?read_only=1" if read_only else "")
        self._lock = ForkLock()  # held by whoever changes a file and the page of it together
        self._pages: dict[Path, tuple[_Signature, Page]] = {}
        self._places: dict[Path, tuple[_Signature, dict[str, int]]] = {}
        self._held_up: set[Path] = set()

    def path(self, context: Context) -> Path:
        """Return the path of a context's records."""
        environment, problem = context.environment, context.problem
        method = _folder_name(problem.method.partition(":")[0])
        folders = (context.kernel.name, environment.device.name, f"triton-{environment.triton}")
        path = self.root.joinpath(*map(_folder_name, folders), f"{method}-{context.digest}.json")
        packed = f"{path}.gz"
        return Path(packed) if os.path.exists(packed) and not os.path.exists(path) else path

    def get(self, context: Context, scenario: Scenario, *, fresh: bool = False) -> Found | None:
        """Return a scenario's record.

        A file that was not read before is searched by halves, and as a whole if that finds none:
        then the places of its records are kept in memory; of a packed one, the text is.
        """
        path = self.path(context)
        if path not in self._pages:
            with suppress(*_UNREADABLE), open_to_read(path, self.root) as file:
                start = None if path in self._places else find_place(file, context, scenario)
                if start is None:
                    start = self._places_in(file, path, context).get(scenario.text)
                record = None if start is None else read_place(file, start, str(path))
                return Found(record, self.url) if record else None
        # There is no such file, it is packed, or `_page` says what is wrong with it.
        page = self._page(context)
        record = page.get(scenario) if page else None
        return Found(record, self.url) if record else None

    def records(self, context: Context) -> Iterator[Record]:
        """Return a context's records; a damaged file counts as empty."""
        page = self._page(context)
        return page.records() if page else iter(())

    def scenario_texts(self, context: Context) -> Iterator[str]:
        """Return the scenarios of a context's file without parsing its records."""
        path = self.path(context)
        if path not in self._pages:
            with suppress(*_UNREADABLE), open_to_read(path, self.root) as file:
                return iter(sorted(self._places_in(file, path, context)))
        page = self._page(context)
        return iter(page.scenario_texts() if page else ())

    def _places_in(self, file: IO[bytes], path: Path, context: Context) -> Mapping[str, int]:
        """Return where a file's records are, searched again only if the file has changed."""
        signature = _signature_of(os.fstat(file.fileno()))
        known, places = self._places.get(path, (None, {}))
        if known != signature:
            places = {}
            for text, start in find_places(file, context):
                if places.setdefault(text, start) != start:
                    raise ValueError("it has a record twice")
            self._places[path] = signature, places
        return places

    def revision(self, context: Context) -> Hashable | None:
        """Return what tells a context's file from its earlier states; `()` if there is none."""
        try:
            return _signature_of(self.path(context).lstat())
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError:
            return None

    def _page(self, context: Context) -> Page | None:
        """Return a file's page, or None if there is no file, or it is damaged as a whole.

        Raises:
            StoreError: the file cannot be read.
        """
        try:
            return self._load(self.path(context))
        except DamagedRecordsError as error:
            warn_once(f"{self.path(context)}", f"{error}; it is passed over")
            return None

    def _load(self, path: Path) -> Page | None:
        """Return a file's page, read again only if the file has changed; None without a file.

        Raises:
            DamagedRecordsError: the file is damaged, or has records of another context.
            StoreError: the file cannot be read.
        """
        with self._lock:
            try:
                signature = _signature_of(path.lstat())
                cached = self._pages.get(path)
                if cached is None or cached[0] != signature:
                    page = Page.parse(read_file(path, self.root), str(path))
                    expected = self.path(page.context)
                    if expected != path:
                        name = expected.relative_to(self.root)
                        raise DamagedRecordsError(f"{path} has records that belong in {name}")
                    self._pages[path] = cached = (signature, page)
                return cached[1]
            except (FileNotFoundError, NotADirectoryError):  # another process may just delete it
                self._pages.pop(path, None)
                return None
            except (ValueError, zlib.error) as error:
                raise DamagedRecordsError(f"{path} is damaged: {error}") from None
            except OSError as error:
                raise describe_failure(error, path, "read") from error

    def contexts(self, kernel: str | None = None) -> Iterator[Context]:
        """Return the contexts of all files that can be read, and warn about the others."""
        contexts = set[Context]()
        for path, content in self._walk(kernel):
            if isinstance(content, Exception):
                warn_once(f"{path}", f"{content}; it is passed over")
            elif content and kernel in (None, content.kernel.name):
                contexts.add(content)
        return iter(sorted(contexts, key=lambda context: context.text))

    def _context_of(self, path: Path) -> Context | None:
        """Return the context of a file, of whose records none is read if it is laid out as usual.

        Raises:
            StoreError: it cannot be read, or has records of another context.
        """
        with suppress(*_UNREADABLE), open_to_read(path, self.root) as file:
            context = read_context(file)
            if self.path(context) == path:
                return context
        page = self._load(path)
        return page.context if page else None

    def problems(self) -> dict[Path, list[str]]:
        """Return what is wrong with the files of the folder that are read."""
        problems: dict[Path, list[str]] = {}
        for path, content in self._walk():
            try:
                page = None if isinstance(content, Exception) else self._load(path)
                problems[path] = page.problems() if page else []
            except StoreError as error:
                content = error
            if isinstance(content, Exception):
                problems[path] = [f"passed over: {content}"]
        return {path: found for path, found in problems.items() if found}

    def damaged_copies(self) -> list[Path]:
        """Return the files that were kept as they were before a write left out what was damaged."""
        return self._find(r"\.json(\.gz)?\.damaged-", None, [])

    def _walk(self, kernel: str | None = None) -> Iterator[tuple[Path, Context | Exception | None]]:
        """Yield a kernel's files, or all, and the context of each or why it cannot be read.

        Folders that cannot be listed are yielded last, with the error.
        """
        unlisted: list[OSError] = []
        for path in self._find(r"\.json(\.gz)?$", kernel, unlisted):
            try:
                yield path, self._context_of(path)
            except (StoreError, OSError) as error:
                yield path, error
        for refusal in unlisted:
            if not isinstance(refusal, (FileNotFoundError, NotADirectoryError)):  # it has just gone
                folder = Path(refusal.filename)
                yield folder, describe_failure(refusal, folder, "read")

    def _find(self, pattern: str, kernel: str | None, unlisted: list[OSError]) -> list[Path]:
        """Return the files whose names contain a pattern, in a kernel's folder or in all, sorted.

        Hidden folders are left out. The errors of folders that cannot be listed go to `unlisted`.
        """
        root = self.root if kernel is None else self.root / _folder_name(kernel)
        paths: list[Path] = []
        for parent, folders, names in os.walk(root, onerror=unlisted.append):
            folders[:] = [name for name in folders if not name.startswith(".")]
            paths += [Path(parent, name) for name in names if re.search(pattern, name)]
        return sorted(paths)

    def put(self, context: Context, records: Iterable[Record], *, now: bool = False) -> None:
        """Merge records into the context's file, under its lock."""
        self._refuse_if_read_only()
        records = list(records)
        with self._change(context) as page:
            page.merge(records)

    def delete(self, context: Context, scenarios: Iterable[Scenario] | None = None) -> int:
        """Delete records under the file's lock, and the file with its last record."""
        self._refuse_if_read_only()
        if self.revision(context) == ():
            return 0
        with self._change(context) as page:
            return page.drop(scenarios)

    def recall(self, context: Context, parts: Mapping[Scenario, Collection[str]]) -> None:
        """Remove parts of records under the file's lock, and the file with its last record."""
        self._refuse_if_read_only()
        if self.revision(context) != ():
            with self._change(context) as page:
                page.recall(parts)

    @contextmanager
    def lease(self, context: Context, scenario: Scenario, *, wait: float) -> Iterator[bool]:
        """Hold a file lock; a folder that cannot be locked or written grants every lease."""
        is_ours = True
        with ExitStack() as held:
            if not self.read_only:
                lock = self.root / _LOCKS / f"{context.digest}-{scenario.digest}.lease"
                try:
                    held.enter_context(hold_lock(lock, wait))
                except Timeout:
                    is_ours = False
                except OSError as error:
                    warn_once(
                        f"lease {self.url}",
                        f"{self.url} cannot lock ({error}): several processes may tune one "
                        "scenario",
                    )
            yield is_ours

    def delete_leftovers(self, older_than: float = 86_400.0) -> int:
        """Delete unfinished files and locks of killed writers, and leases; return their number.

        None is younger than `older_than` seconds. No link is followed.
        """
        deleted, until = 0, time.time() - older_than
        for _, _, names, folder in os.fwalk(self.root) if self.root.is_dir() else ():
            for name in names:
                if name.endswith((".lease", ".soft")) or ".tmp-" in name:
                    with suppress(OSError):  # its writer was quicker
                        if os.lstat(name, dir_fd=folder).st_mtime < until:
                            os.unlink(name, dir_fd=folder)
                            deleted += 1
        return deleted

    @contextmanager
    def _change(self, context: Context) -> Iterator[Page]:
        """Hold a file's lock, yield the file's content, and write it if the block changes it.

        A process waits once for a writer that is stuck, and not at each of its writes.

        Raises:
            StoreError: another writer keeps the lock, or it cannot be made.
        """
        path, lock = self.path(context), self.root / _LOCKS / f"{context.digest}.lock"
        with ExitStack() as held:
            try:
                held.enter_context(hold_lock(lock, _WAIT_AGAIN if path in self._held_up else _WAIT))
            except Timeout:
                self._held_up.add(path)
                raise StoreError(
                    f"{path} is locked by another writer, which was waited for {_WAIT:.0f} s"
                ) from None
            except OSError as error:
                raise describe_failure(error, self.root, "written") from error
            self._held_up.discard(path)
            path = self.path(context)  # which the last writer may have unpacked
            with self._lock:
                try:
                    try:
                        page = self._load(path) or Page(context, str(path))
                    except DamagedRecordsError as error:
                        page = Page(context, str(path), loss=str(error))
                    yield page
                    if page.is_changed:
                        self._write(path, page)
                except BaseException:
                    self._pages.pop(path, None)
                    raise

    def _write(self, path: Path, page: Page) -> None:
        text = page.text
        if page.loss:
            self._keep_copy(path, "was damaged")
        beside = Path(f"{path}.gz")
        if os.path.lexists(beside):  # of a killed writer, and read again were this one deleted
            self._keep_copy(beside, f"was not read, beside {path.name}")
            _remove_file(beside, self.root)
        plain = path.with_suffix("") if path.suffix == ".gz" else path
        if text:
            try:
                replace_file(plain, text.encode(), self.root, durable=self._durable)
            except OSError as error:
                raise describe_failure(error, path, "written") from error
        if not text or plain != path:
            _remove_file(path, self.root)
        page.is_changed, page.loss = False, ""
        self._pages.pop(path, None)
        with suppress(OSError):  # what was written is durable, whether or not it can be looked at
            self._pages[plain] = _signature_of(plain.lstat()), page

    def _keep_copy(self, path: Path, reason: str) -> None:
        copy = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
        try:
            replace_file(copy, read_file(path, self.root), self.root)
        except OSError as error:
            raise describe_failure(error, copy, "written") from error
        warn_once(f"write {path}", f"{path} {reason}; it is kept as {copy.name}")


def _remove_file(path: Path, root: Path) -> None:
    """Remove a file, if it exists.

    Raises:
        StoreError: it cannot be removed.
    """
    try:
        with open_folder(root, path.parent) as folder:
            os.unlink(path.name, dir_fd=folder)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        raise describe_failure(error, path, "removed") from error


@contextmanager
def hold_lock(path: Path, wait: float) -> Iterator[None]:
    """Hold the lock of a path; on a file system without locks, a file stands for it.

    Raises:
        Timeout: another process still has the lock after `wait` seconds.
        OSError: the file cannot be created.
    """
    with open_folder(path.parents[1], path.parent, create=True):
        pass  # it is a folder, and no link to one of somebody else
    lock: BaseFileLock = FileLock(path, timeout=wait)
    try:
        lock.acquire()
    except (NotImplementedError, OSError) as error:  # the former is an older filelock's ENOSYS
        if getattr(error, "errno", errno.ENOSYS) not in _WITHOUT_LOCKS:
            raise
        lock = SoftFileLock(path.with_name(f"{path.name}.soft"), timeout=wait)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def describe_failure(error: OSError, path: Path, action: str) -> StoreError:
    """Return a store's error for a failed access, with a remedy where one is known.

    The action completes "PATH cannot be …", such as "read".
    """
    remedy = _REMEDIES.get(error.errno or 0, "")
    return StoreError(
        f"{path} cannot be {action}: {error.strerror or error}{'; ' + remedy if remedy else ''}"
    )


def _signature_of(stat: os.stat_result) -> _Signature:
    """Return what tells a file from its earlier states."""
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _folder_name(name: str) -> str:
    """Return a name as a folder's name that people recognise and every file system accepts."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:120] or "_"
