"""Read the result files of the other autotuners, by the tool's name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from ..errors import DamagedRecordsError, StoreError
from ..model.foreign_result import ForeignResult
from ..system.safe_files import read_file
from .flash_linear_attention import read_flash_linear_attention
from .triton_autotuner import read_triton_autotuner
from .triton_dejavu import read_triton_dejavu
from .vllm import read_lora_table, read_table

__all__ = ["READERS", "Reader", "read_foreign_files"]


class Reader(NamedTuple):
    """Reads one kind of file.

    Attributes:
        pattern: of the files' names.
        read: yields the results of a file: `(path, content)`.
    """

    pattern: str
    read: Callable[[Path, Mapping[str, Any]], Iterator[ForeignResult]]


READERS = {
    "triton": (Reader("*.autotune.json", read_triton_autotuner),),
    "triton-dejavu": (Reader("cache.json", read_triton_dejavu),),
    "fla": (Reader("*.json", read_flash_linear_attention),),
    "vllm": (
        Reader("*device_name=*.json", read_table),
        Reader("*_SHRINK.json", read_lora_table),
        Reader("*_EXPAND*.json", read_lora_table),
    ),
}

_UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    SyntaxError,
    RecursionError,
    MemoryError,  # raised by `ast.literal_eval` for text that is nested too deeply
)


def read_foreign_files(origin: str, folder: Path) -> list[ForeignResult]:
    """Read all results in a folder of another tool's files.

    Args:
        origin: the tool: a key of `READERS`.
        folder: the folder, searched with its subfolders.

    Raises:
        StoreError: the folder does not exist.
        DamagedRecordsError: a file is not in the tool's format; the message names it.
    """
    if not folder.is_dir():
        raise StoreError(f"{folder} is not a folder")
    results: list[ForeignResult] = []
    for reader in READERS[origin]:
        for path in sorted(folder.rglob(reader.pattern)):
            try:
                results += reader.read(path, _read_object(path))
            except _UNREADABLE as error:
                raise DamagedRecordsError(
                    f"{path} does not hold what {origin} writes: {_reason(error)}; "
                    "nothing was imported"
                ) from None
    return results


def _read_object(path: Path) -> dict[str, Any]:
    if not path.is_file():  # opening a pipe would wait for its writer
        raise ValueError("it is no file")
    content = json.loads(read_file(path.resolve()).decode())  # caches of downloads have links
    if not isinstance(content, dict):
        raise ValueError("it is no JSON object")
    return content


def _reason(error: BaseException) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
