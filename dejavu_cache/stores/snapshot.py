"""Immutable snapshots, named by the digest of their content: `frozen:///folder/DIGEST.jsonl`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from ..errors import SnapshotError, StoreError
from ..model.merge import OnConflict
from ..model.record import Record, record_set_line
from ..model.scenario import Context, Scenario
from ..system.safe_files import read_file, replace_file
from .base import Store
from .file_layout import read_set
from .leftovers import delete_unfinished
from .memory import MemoryStore

__all__ = ["FrozenStore", "freeze"]

SUFFIX = ".jsonl"


class FrozenStore(MemoryStore):
    """Records in a file whose name is the SHA-256 of its content.

    The file is read completely and verified when it is opened.
    """

    read_only = True

    def __init__(self, path: Path) -> None:
        """Read and verify a snapshot.

        Raises:
            SnapshotError: the snapshot is missing, or its content does not have the digest in its
                name.
        """
        super().__init__()
        path = path if path.suffix == SUFFIX else path.with_name(path.name + SUFFIX)
        self.url = path.absolute().as_uri().replace("file:", "frozen:", 1)
        try:
            # A link does no harm here, since the content is checked, and mounts are made of them.
            content = read_file(Path(os.path.realpath(path)))
        except OSError as error:
            raise SnapshotError(
                f"the frozen snapshot {path} cannot be read ({error.strerror}): copy it there, or "
                "name another in DEJAVU_CACHE_URL; `dejavu-cache freeze` makes one"
            ) from None
        if hashlib.sha256(content).hexdigest() != path.stem:
            raise SnapshotError(
                f"{path} is not the snapshot that its name says: it was changed or cut; "
                "copy it again"
            )
        for line in content.splitlines():
            record_set = read_set(line, str(path))
            super().put(record_set.context, record_set.records)

    def put(
        self, context: Context, records: Iterable[Record], on_conflict: OnConflict = "newest"
    ) -> None:
        """Raise `ReadOnlyStoreError`."""
        self._refuse_if_read_only()

    def delete(self, context: Context, scenarios: Iterable[Scenario] | None = None) -> int:
        """Raise `ReadOnlyStoreError`."""
        self._refuse_if_read_only()
        return 0

    def recall(self, context: Context, parts: Mapping[Scenario, Collection[str]]) -> None:
        """Raise `ReadOnlyStoreError`."""
        self._refuse_if_read_only()


def freeze(store: Store, folder: Path, kernels: str | Collection[str] | None = None) -> FrozenStore:
    """Write a store's records to a snapshot; equal records give an equal name.

    Args:
        store: the store to copy.
        folder: the folder of the snapshot; it is created.
        kernels: qualified names of the kernels to copy; None copies all.

    Raises:
        StoreError: the snapshot cannot be written.
    """
    names = {kernels} if isinstance(kernels, str) else kernels
    lines: list[str] = []
    for context in store.contexts():
        if names is None or context.kernel.name in names:
            lines += record_set_line(context, store.records(context))
    content = "".join(lines).encode()
    path = folder.absolute() / f"{hashlib.sha256(content).hexdigest()}{SUFFIX}"
    delete_unfinished(path)
    try:
        replace_file(path, content, mode=0o444)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}") from None
    return FrozenStore(path)
