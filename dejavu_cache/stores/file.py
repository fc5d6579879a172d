"""Store in a folder, with one readable file per kernel, environment and problem."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from filelock import Timeout

from ..errors import DamagedRecordsError, StoreError
from ..model.decision_tree import Tree
from ..model.record import Record
from ..model.scenario import Context, Scenario
from ..system.fork_lock import ForkLock
from ..system.notices import warn_once
from ..system.safe_files import expand_home
from .base import Found, FoundTree, Store
from .file_layout import HEAD_BYTES, Page, context_of_head, find_record
from .folder import Folder, Signature, describe_failure, folder_name, hold_lock, signature_of

__all__ = ["FileStore"]

_TREE = ".tree.json"

T = TypeVar("T")


class FileStore(Store):
    """Records in a folder: `file:///path`, or a bare path; `?read_only=1` never writes.

    The path of a file is `KERNEL/DEVICE/triton-VERSION/METHOD-DIGEST.json`. Writers take turns
    under the file's lock, merge their records with those in the file, and replace it atomically and
    durably. A damaged file is renamed, never overwritten, and a damaged record costs only itself. A
    decision tree is the file `METHOD-DIGEST.tree.json` beside the records it was fitted to.

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
        self._folder = Folder(self.root)
        self._pages: dict[Path, tuple[Signature, Page]] = {}
        self._lock = ForkLock()  # held by whoever changes a file and the page of it together

    def path(self, context: Context) -> Path:
        """Return the path of a context's records."""
        environment, problem = context.environment, context.problem
        method = folder_name(problem.method.partition(":")[0])
        folders = (context.kernel.name, environment.device.name, f"triton-{environment.triton}")
        return self.root.joinpath(*map(folder_name, folders), f"{method}-{context.digest}.json")

    def get(self, context: Context, scenario: Scenario, *, fresh: bool = False) -> Found | None:
        """Return a scenario's record.

        A file that was not read before is bisected. That may miss a record in a file whose records
        somebody has put out of order, so `fresh`, for whoever would tune next, reads it whole.
        """
        path, record = self.path(context), None
        if path not in self._pages:
            # What is wrong with a file, reading it whole says.
            with suppress(OSError, ValueError), self._folder.open(path) as file:
                record = find_record(file, context, scenario, str(path))
                if record is None and not fresh:
                    return None
        if record is None:
            page = self._page(context)
            record = page.get(scenario) if page else None
        return Found(record, self.url) if record else None

    def records(self, context: Context) -> Iterator[Record]:
        """Return a context's records; a damaged file counts as empty."""
        page = self._page(context)
        return page.records() if page else iter(())

    def scenario_texts(self, context: Context) -> Iterator[str]:
        """Return the scenarios of a context's file without parsing its records."""
        page = self._page(context)
        return iter(page.scenario_texts() if page else ())

    def revision(self, context: Context) -> Hashable | None:
        """Return what tells a context's file from its earlier states; `()` if there is none."""
        try:
            return signature_of(self.path(context))
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError:
            return None

    def _page(self, context: Context) -> Page | None:
        """Return a file's page, or None if there is no file, or a damaged one is set aside.

        Raises:
            StoreError: the file cannot be read.
        """
        path = self.path(context)
        try:
            return self._load(path, context)
        except DamagedRecordsError as error:
            self._set_aside(path, context, str(error))
            return None

    def _load(self, path: Path, context: Context) -> Page | None:
        """Return a file's page, read again only if the file has changed; None without a file.

        Raises:
            DamagedRecordsError: the file is damaged, or has records of another context.
            StoreError: the file cannot be read.
        """
        with self._lock:
            try:
                signature = signature_of(path)
                cached = self._pages.get(path)
                if cached is None or cached[0] != signature:
                    page = Page.parse(self._folder.read(path), str(path))
                    if page.context != context:
                        raise DamagedRecordsError(
                            f"{path} holds records of another context: {page.context.kernel.name}"
                        )
                    self._pages[path] = cached = (signature, page)
                return cached[1]
            except (FileNotFoundError, NotADirectoryError):  # another process may just delete it
                self._pages.pop(path, None)
                return None
            except OSError as error:
                raise describe_failure(error, path, "read") from error

    def contexts(self, kernel: str | None = None) -> Iterator[Context]:
        """Return the contexts of all files that can be read, and warn about the others."""
        contexts = [context for _, context in self._readable(".json", self._context_of, kernel)]
        named = (context for context in contexts if kernel in (None, context.kernel.name))
        return iter(sorted(named, key=lambda context: context.text))

    def unreadable(self) -> dict[Path, str]:
        """Return why files are ignored: a newer format, damage, or a path of another context."""
        found = self._walk(".json", self._whole_page)
        return {path: str(page) for path, page in found if isinstance(page, Exception)}

    def why_unreadable(self) -> str:
        """Return why no file can be read; an empty text if one can, or if there is none."""
        first = ""
        for path, context in self._walk(".json", self._context_of):
            if isinstance(context, Context):
                return ""
            first = first or f"{path}: {context}"
        return first

    def damaged_records(self) -> dict[Path, list[str]]:
        """Return what is wrong with records that are damaged in files that can be read."""
        found = self._walk(".json", self._whole_page)
        damages = {path: page.damages() for path, page in found if isinstance(page, Page)}
        return {path: problems for path, problems in damages.items() if problems}

    def _readable(
        self, ending: str, read: Callable[[Path], T], kernel: str | None
    ) -> Iterator[tuple[Path, T]]:
        """Yield the files of a kernel's folder that can be read, and warn about the others."""
        for path, content in self._walk(ending, read, kernel):
            if isinstance(content, Exception):
                warn_once(f"{path}", f"{path} is passed over: {content}")
            else:
                yield path, content

    def _walk(
        self, ending: str, read: Callable[[Path], T], kernel: str | None = None
    ) -> Iterator[tuple[Path, T | Exception]]:
        """Yield the files with an ending, and what is read from each or why it cannot be read."""
        below = "" if kernel is None else folder_name(kernel)
        for path, unlisted in self._folder.find(ending, below=below):
            if path.name.endswith(_TREE) and ending != _TREE:
                continue
            try:
                if unlisted is not None:
                    raise unlisted
                content: T | Exception = read(path)
            except (StoreError, OSError, UnicodeDecodeError) as error:
                content = error
            yield path, content

    def _whole_page(self, path: Path) -> Page | None:
        return self._load(path, self._context_of(path))

    def _tree_of(self, path: Path) -> Tree:
        return Tree.parse(self._folder.read(path), str(path))

    def _context_of(self, path: Path) -> Context:
        """Return the context of the records in a file.

        Raises:
            StoreError: it is damaged, or does not belong at its path.
            OSError: it cannot be read.
        """
        with self._folder.open(path) as file:
            context = context_of_head(file.read(HEAD_BYTES), str(path))
        context = context or Page.parse(self._folder.read(path), str(path)).context
        expected = self.path(context)
        # On a file system that ignores case, the folder of `pkg.Add` is that of `pkg.add` too.
        is_alike = str(expected).casefold() == str(path).casefold()
        if expected != path and not (is_alike and expected.exists() and expected.samefile(path)):
            raise StoreError(f"it belongs at {expected.relative_to(self.root)}")
        return context

    def trees(self, kernel: str | None = None) -> Iterator[FoundTree]:
        """Yield the decision trees that can be read, and warn about the others."""
        for path, tree in self._readable(_TREE, self._tree_of, kernel):
            if kernel in (None, tree.context.kernel.name):
                yield FoundTree(tree, path.as_uri())

    def unreadable_trees(self) -> dict[Path, str]:
        """Return why files of decision trees are passed over."""
        found = self._walk(_TREE, self._tree_of)
        return {path: str(tree) for path, tree in found if isinstance(tree, Exception)}

    def put_tree(self, tree: Tree) -> str:
        """Write the tree's file, beside the records of its context."""
        self._refuse_if_read_only()
        path = self.path(tree.context).with_suffix(_TREE)
        self._folder.write(path, tree.text)
        return path.as_uri()

    def delete_tree(self, context: Context) -> bool:
        """Remove the tree's file."""
        self._refuse_if_read_only()
        return self._folder.remove(self.path(context).with_suffix(_TREE))

    def put(self, context: Context, records: Iterable[Record]) -> None:
        """Merge records into the context's file, under its lock."""
        self._refuse_if_read_only()
        records = list(records)
        with self._changing(context) as page:
            page.merge(records)

    def delete(self, context: Context, scenarios: Iterable[Scenario] | None = None) -> int:
        """Delete records under the file's lock, and the file with its last record."""
        self._refuse_if_read_only()
        if self.revision(context) == ():
            return 0
        with self._changing(context) as page:
            return page.drop(scenarios)

    def recall(self, context: Context, parts: Mapping[Scenario, Collection[str]]) -> None:
        """Remove parts of records under the file's lock, and the file with its last record."""
        self._refuse_if_read_only()
        if self.revision(context) != ():
            with self._changing(context) as page:
                page.recall(parts)

    @contextmanager
    def lease(self, context: Context, scenario: Scenario, *, wait: float) -> Iterator[bool]:
        """Hold a file lock; a folder that cannot be locked or written grants every lease."""
        is_ours = True
        with ExitStack() as held:
            if not self.read_only:
                lock = self._folder.lock_path(f"{context.digest}-{scenario.digest}.lease")
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

    def damaged_files(self) -> list[Path]:
        """Return the damaged files that were renamed to be set aside."""
        return sorted(self.root.rglob("*.json.damaged-*"))

    def delete_leftovers(self, older_than: float = 86_400.0) -> int:
        """Delete the leftovers of killed writers, and return the number of deleted files.

        Args:
            older_than: the least age of a leftover, in seconds.
        """
        return self._folder.delete_leftovers(older_than)

    @contextmanager
    def _changing(self, context: Context) -> Iterator[Page]:
        """Hold a file's lock, yield the file's content, and write it if the block changes it."""
        path = self.path(context)
        with self._folder.writing(path, f"{context.digest}.lock"), self._lock:
            try:
                page = self._page_to_write(path, context)
                yield page
                if page.is_changed:
                    self._write(path, page)
            except BaseException:
                self._pages.pop(path, None)
                raise

    def _page_to_write(self, path: Path, context: Context) -> Page:
        """Return a file's content, or an empty page if there is no file or a damaged one."""
        try:
            return self._load(path, context) or Page(context, where=str(path))
        except DamagedRecordsError as error:
            self._rename_damaged(path, str(error))
            return Page(context, where=str(path))

    def _write(self, path: Path, page: Page) -> None:
        if page.displaced:
            self._folder.keep_beside(path, "".join(f"{{{text}\n" for text in page.displaced))
            page.displaced = []
        if not len(page):
            self._folder.remove(path)
            self._pages.pop(path, None)
            return
        self._folder.write(path, page.text)
        page.is_changed = page.is_cut = False
        self._remember(path, page)

    def _remember(self, path: Path, page: Page) -> None:
        """Keep the page that was just written to a file."""
        try:
            signature = signature_of(path)
        except OSError:  # What was written is durable, whether or not it can be looked at now.
            self._pages.pop(path, None)
            return
        self._pages[path] = signature, page

    def _set_aside(self, path: Path, context: Context, why: str) -> None:
        """Rename a damaged file, and warn once; in a read-only store, only warn.

        A file that somebody writes now is left to them, and one that was replaced is not damaged.
        """
        self._pages.pop(path, None)
        if self.read_only:
            warn_once(
                f"{path}", f"{why}; the store is read-only, so the file stays and is passed over"
            )
            return
        with ExitStack() as held:
            try:
                held.enter_context(hold_lock(self._folder.lock_path(f"{context.digest}.lock"), 0.0))
            except Timeout:
                warn_once(
                    f"locked {path}", f"{why}; another process has its lock, so it is passed over"
                )
                return
            except OSError as error:
                raise describe_failure(error, path, "set aside") from error
            with self._lock:
                self._page_to_write(path, context)

    def _rename_damaged(self, path: Path, why: str) -> None:
        """Rename a damaged file, whose lock is held, and warn once."""
        self._pages.pop(path, None)
        aside = self._folder.set_aside(path)
        if aside is not None:
            warn_once(f"{path}", f"{why}; it is kept as {aside.name}")
