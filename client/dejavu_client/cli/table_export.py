"""Export of tuned tables for inference engines."""

from __future__ import annotations

from pathlib import Path

from dejavu_cache.errors import StoreError
from dejavu_cache.integrations.tuned_tables import (
    ANY_VERSION,
    TABLE_FILES,
    collect_tables,
    write_tables,
)
from dejavu_cache.stores import Store
from dejavu_cache.system.notices import counted
from dejavu_cache.system.safe_files import open_folder
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
        version: of Triton, or `any`; empty for the installed one, and for all where the engine
            keeps one folder for each.

    Raises:
        NothingFoundError: the store has no tables, or none of that engine and version.
        StoreError: the first file cannot be written.
        PartlyDoneError: a later one cannot be written.
    """
    tables = collect_tables(source)
    if not tables:
        raise NothingFoundError(f"{source.url} has no records or imported tables for engines")
    installed = "" if engine == "sglang" else triton_version() or ""
    files = list(TABLE_FILES[engine](tables, version or installed))
    if not files:
        if not list(TABLE_FILES[engine](tables, ANY_VERSION)):
            raise NothingFoundError(f"{engine} reads none of the tables that {source.url} makes")
        versions = ", ".join(sorted({table.triton or "unknown" for table in tables}))
        raise NothingFoundError(
            f"no table of {source.url} is for {engine} and Triton {version or installed}, but for "
            f"{versions}: choose one by --triton, or the newest by --triton {ANY_VERSION}"
        )
    for count, file in enumerate(files):
        try:
            write_tables([file], folder)
            if engine == "sglang":  # lists this folder, and fails if products alone were exported
                with open_folder(folder, folder / "configs", create=True):
                    pass
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
