"""Immutable snapshots, named by the digest of their content: `frozen:///folder/DIGEST.jsonl`."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from pathlib import Path

from pydantic import ValidationError

from ..errors import DamagedRecordsError, NewerFormatError, StoreError
from ..model.merge import OnConflict
from ..model.record import FORMAT, Record, RecordSet
from ..model.scenario import Context, Scenario, canonical_json
from ..system.safe_files import read_file, replace_file
from .base import Store
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
            StoreError: the snapshot is missing, or its content does not have the digest in its
                name.
        """
        super().__init__()
        path = path if path.suffix == SUFFIX else path.with_name(path.name + SUFFIX)
        self.url = f"frozen://{path}"
        try:
            content = read_file(path)
        except OSError as error:
            raise StoreError(
                f"the frozen snapshot {path} cannot be read ({error.strerror}): copy it there, or "
                "name another in DEJAVU_CACHE_URL; `dejavu-cache freeze` makes one"
            ) from None
        if hashlib.sha256(content).hexdigest() != path.stem:
            raise StoreError(
                f"{path} is not the snapshot that its name says: it was changed or cut; "
                "copy it again"
            )
        for line in content.splitlines():
            record_set = _parse(line, path)
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


def _parse(line: bytes, path: Path) -> RecordSet:
    try:
        record_set = RecordSet.model_validate_json(line)
    except ValidationError as error:
        raise DamagedRecordsError(
            f"{path} is no snapshot: {error.errors(include_url=False)[0]['msg']}"
        ) from None
    if record_set.format > FORMAT:
        raise NewerFormatError(str(path), record_set.format, FORMAT)
    return record_set


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
    lines = []
    for context in store.contexts():
        if names is None or context.kernel.name in names:
            record_set = RecordSet(context=context, records=tuple(store.records(context)))
            lines.append(canonical_json(record_set) + "\n")
    content = "".join(lines).encode()
    path = folder.absolute() / f"{hashlib.sha256(content).hexdigest()}{SUFFIX}"
    try:
        replace_file(path, content, mode=0o444)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}") from None
    return FrozenStore(path)
