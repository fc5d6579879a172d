"""A snapshot that is named by its content and cannot change: `frozen:///folder/DIGEST.jsonl`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from ..errors import DamagedRecordsError, NewerFormatError, StoreError
from ..model.merge import OnConflict
from ..model.record import FORMAT, Record, RecordSet
from ..model.scenario import Context, Scenario, canonical_json
from .base import Store
from .memory import MemoryStore

__all__ = ["FrozenStore", "freeze"]

SUFFIX = ".jsonl"


class FrozenStore(MemoryStore):
    """Records in a file whose name is the SHA-256 of its content, read whole and verified when it is opened.

    Raises:
        StoreError: the snapshot is missing, or is not what its name says.
    """

    read_only = True

    def __init__(self, path: Path) -> None:
        super().__init__()
        path = path if path.suffix == SUFFIX else path.with_name(path.name + SUFFIX)
        self.url = f"frozen://{path}"
        try:
            content = path.read_bytes()
        except OSError as error:
            raise StoreError(
                f"the frozen snapshot {path} cannot be read ({error.strerror}): copy it there, or name another in "
                "DEJAVU_CACHE_URL; `dejavu-cache freeze` makes one"
            ) from None
        if hashlib.sha256(content).hexdigest() != path.stem:
            raise StoreError(
                f"{path} is not the snapshot that its name says: it was changed or cut; copy it again"
            )
        for line in content.splitlines():
            whole = _parse(line, path)
            super().put(whole.context, whole.records)

    def put(
        self, context: Context, records: Iterable[Record], on_conflict: OnConflict = "newest"
    ) -> None:
        self._refuse_if_read_only()

    def delete(self, context: Context, scenarios: Iterable[Scenario] | None = None) -> int:
        self._refuse_if_read_only()
        return 0


def _parse(line: bytes, path: Path) -> RecordSet:
    try:
        whole = RecordSet.model_validate_json(line)
    except ValidationError as error:
        raise DamagedRecordsError(
            f"{path} is no snapshot: {error.errors(include_url=False)[0]['msg']}"
        ) from None
    if whole.format > FORMAT:
        raise NewerFormatError(str(path), whole.format, FORMAT)
    return whole


def freeze(store: Store, folder: Path, kernel: str | None = None) -> FrozenStore:
    """Writes what a store holds, of one kernel or of all, to a snapshot; the same records give the same name."""
    content = "".join(canonical_json(whole) + "\n" for whole in store.record_sets(kernel)).encode()
    path = folder.absolute() / f"{hashlib.sha256(content).hexdigest()}{SUFFIX}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(".tmp")
        beside.write_bytes(content)
        beside.replace(path)
        path.chmod(0o444)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}") from None
    return FrozenStore(path)
