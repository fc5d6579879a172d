"""Export of tuned tables for inference engines."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from dejavu_cache.engines.tuned_tables import TABLE_FILES, collect_tables, write_table
from dejavu_cache.errors import StoreError
from dejavu_cache.stores import Store
from dejavu_cache.system.notices import counted
from dejavu_cache.triton_internals.environment import triton_version

from .errors import NothingFoundError, PartlyDoneError
from .output import note

__all__ = ["export_tables"]


def export_tables(source: Store, engine: str, folder: Path, version: str) -> None:
    """Write a store's tuned tables into a folder, in the format of an engine.

    Args:
        source: the store.
        engine: a key of `TABLE_FILES`.
        folder: is made if it does not exist; other files in it stay.
        version: of Triton; empty for the installed one, and for all where the engine keeps one
            folder for each.

    Raises:
        NothingFoundError: the store has no tables, or none of that version.
        StoreError: the first file cannot be written.
        PartlyDoneError: a later one cannot be written.
    """
    tables = collect_tables(source)
    wanted = version or ("" if engine == "sglang" else triton_version() or "")
    files = list(TABLE_FILES[engine](tables, wanted))
    for name, count in sum((table.unknown for table in tables), Counter()).items():
        note(f"{counted(count, 'config')} left out: {engine}'s tables set no {name}")
    if not tables:
        raise NothingFoundError(f"{source.url} has no records of an engine's fused experts")
    if not files:
        versions = ", ".join(sorted({table.subject.triton for table in tables}))
        raise NothingFoundError(
            f"no table of {source.url} is for Triton {wanted}, but for {versions}: choose one by "
            "--triton"
        )
    for count, file in enumerate(files):
        try:
            write_table(file, folder)
        except OSError as error:
            message = f"{folder / file.path} cannot be written: {error.strerror or error}"
            if count:
                message += f"; {counted(count, 'table')} of {len(files)} written before it"
                raise PartlyDoneError(message) from None
            raise StoreError(message) from None
    note(f"{counted(len(files), 'table')} of {source.url} written to {folder}")
    uncompared = sum(table.uncompared for table in tables)
    if uncompared:
        note(
            f"{counted(uncompared, 'config')} in the store's tables won without a comparison of "
            "results: `dejavu-cache sweep` compares them"
        )
