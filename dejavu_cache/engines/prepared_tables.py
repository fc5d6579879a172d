"""Tuned tables for the engines of a command, made from a store in the user's cache folder.

An engine reads its tables once, from a folder that an environment variable names. Each content gets
a folder of its own, so that engines that start at once do not disturb each other.
"""

from __future__ import annotations

import hashlib
import json
import queue
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from ..errors import StoreError
from ..integrations.tuned_tables import (
    TABLE_FILES,
    TableFile,
    TunedTable,
    collect_tables,
    write_tables,
)
from ..stores import Store
from ..system.background_threads import start_thread
from ..system.notices import logger
from ..system.safe_files import user_folder
from ..triton_internals.environment import triton_version

__all__ = ["VARIABLES", "prepare_tables"]

VARIABLES = {"vllm": "VLLM_TUNED_CONFIG_FOLDER", "sglang": "SGLANG_MOE_CONFIG_DIR"}
"""The variable that names the folder of an engine's tables."""

PATIENCE = 15.0
"""Seconds that reading a store may take in all before an engine starts with its last tables."""

UNUSED = 30 * 86400
"""Seconds after which a folder of tables is deleted if no engine was started with it."""

_CONTENT = "content"

_NONE = "none"
"""Name of the folder that stands for no tables."""


def prepare_tables(store: Store, environment: Mapping[str, str]) -> dict[str, str]:
    """Write a store's tables for the engines that are installed, and return the variables to set.

    A variable that is set already stays. If the store does not answer within `PATIENCE`, an engine
    gets the tables that were written last.

    Args:
        store: the store; one that raises where a server does not answer.
        environment: of the command.
    """
    version = triton_version()
    engines = [
        engine
        for engine, variable in VARIABLES.items()
        if variable not in environment and find_spec(engine) is not None
    ]
    if not engines or version is None:
        return {}
    tables = None
    try:
        tables = _collect_in_time(store)
    except (StoreError, OSError) as error:
        logger.warning("tuned tables are not refreshed: %s", error)
    prepared = {}
    for engine in engines:
        # A second installation of SGLang has other tables of its own to link to.
        place = f"{store.url} {version} {_package_folders(engine)}"
        root = _tables_folder() / f"{engine}-{hashlib.sha256(place.encode()).hexdigest()[:16]}"
        folder = _latest(root) if tables is None else _write(engine, tables, version, root)
        if folder is not None:
            prepared[VARIABLES[engine]] = str(folder)
    return prepared


def _collect_in_time(store: Store) -> list[TunedTable]:
    """Return a store's tables.

    Raises:
        StoreError: the store cannot be read, or not in time; a thread then goes on reading.
    """
    outcomes: queue.SimpleQueue[list[TunedTable] | Exception] = queue.SimpleQueue()

    def collect() -> None:
        try:
            outcomes.put(collect_tables(store))
        except Exception as error:
            outcomes.put(error)

    start_thread(collect, "dejavu-cache tables")
    try:
        outcome = outcomes.get(timeout=PATIENCE)
    except queue.Empty:
        raise StoreError(f"{store.url} was not read within {PATIENCE:g} s") from None
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def _tables_folder() -> Path:
    return user_folder("tables")


def _write(engine: str, tables: Sequence[TunedTable], version: str, root: Path) -> Path | None:
    """Write an engine's tables into a folder named by their content, unless there are none."""
    files = sorted(TABLE_FILES[engine](tables, version))
    shipped: Mapping[str, Path] | None = {}
    if engine == "sglang":
        files = [file for file in files if file.path.startswith("configs/")]
        shipped = _shipped_beside(files)
    if not files or shipped is None:
        _note_none(root)
        return None
    content = json.dumps([files, sorted(map(str, shipped.items()))])
    folder = root / hashlib.sha256(content.encode()).hexdigest()[:16]
    is_complete = (folder / _CONTENT).exists()
    try:
        if not is_complete:
            write_tables(files, folder)
            _link(shipped, folder)
        (folder / _CONTENT).touch()  # comes last, and tells when the folder was used
        _delete_unused(root)
    except OSError as error:
        if not is_complete:  # An image may have them, and a cache that is read-only.
            logger.warning("tuned tables cannot be written: %s", error)
            return None
    return folder


def _note_none(root: Path) -> None:
    """Note that there are no tables: earlier ones must not come back when the store is silent."""
    with suppress(OSError):
        if root.exists():
            (root / _NONE).mkdir(exist_ok=True)
            (root / _NONE / _CONTENT).touch()


def _link(shipped: Mapping[str, Path], folder: Path) -> None:
    for name, path in shipped.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):  # by another start, or one that was cut short
            (folder / name).symlink_to(path)


def _latest(root: Path) -> Path | None:
    """Return the folder of tables that was used last; None if there were none."""
    latest: tuple[float, Path] | None = None
    for mark in root.glob(f"*/{_CONTENT}"):
        with suppress(FileNotFoundError):  # Another start may be deleting it.
            used = mark.stat().st_mtime, mark.parent
            latest = used if latest is None else max(latest, used)
    return None if latest is None or latest[1].name == _NONE else latest[1]


def _delete_unused(root: Path) -> None:
    for mark in root.glob(f"*/{_CONTENT}"):
        with suppress(FileNotFoundError):  # Another start may be deleting it.
            if time.time() - mark.stat().st_mtime > UNUSED:
                shutil.rmtree(mark.parent, ignore_errors=True)


def _shipped_beside(files: Sequence[TableFile]) -> dict[str, Path] | None:
    """Return the tables in SGLang's package that none of ours replaces, by their place in a folder.

    SGLang does not read them any more once the variable is set. Its table for the second product
    (`_down`) must have the blocks of the one for the first, so it is left out where we replace that
    one.

    Returns:
        None where the package has no tables in a place that is known.
    """
    loaders = [
        loader
        for location in _package_folders("sglang")
        for loader in Path(location).glob("srt/layers/moe/**/fused_moe_triton_config.py")
    ]
    if not loaders:
        return None
    our_names = {Path(file.path).stem for file in files}
    replaced = {file.path for file in files}
    shipped: dict[str, Path] = {}
    for loader in loaders:
        for path in loader.parent.glob("configs/triton_*/*.json"):
            relative = str(path.relative_to(loader.parent))
            first_product = path.stem.removesuffix("_down")
            is_second = first_product != path.stem
            if relative not in replaced and not (is_second and first_product in our_names):
                shipped[relative] = path
    return shipped


def _package_folders(name: str) -> list[str]:
    package = find_spec(name)
    folders = None if package is None else package.submodule_search_locations
    return list(folders or ())
