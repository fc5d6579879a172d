"""Files of a store's folder that hold results of other autotuners, one per function."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..errors import StoreError
from ..model.foreign_result import ForeignResult, format_foreign_results, parse_foreign_results
from ..system.notices import warn_once
from .file_access import describe_failure, folder_name, read_text, write_text
from .file_locks import FileLocks

__all__ = ["ImportedFiles"]


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
