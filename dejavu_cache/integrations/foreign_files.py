"""Read the result files of the other autotuners, by the tool's name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from ..errors import SettingsError
from ..model.foreign_result import ForeignResult
from .flash_linear_attention import read_flash_linear_attention
from .triton_autotuner import read_triton_autotuner
from .triton_dejavu import read_triton_dejavu
from .vllm import read_vllm

__all__ = ["READERS", "read_foreign_files"]

READERS: dict[str, Callable[[Path], Iterator[ForeignResult]]] = {
    "triton": read_triton_autotuner,
    "triton-dejavu": read_triton_dejavu,
    "fla": read_flash_linear_attention,
    "vllm": read_vllm,
}


_UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    SyntaxError,
    RecursionError,
)


def read_foreign_files(origin: str, folder: Path) -> list[ForeignResult]:
    """Read all results in a folder of another tool's files.

    Args:
        origin: the tool: a key of `READERS`.
        folder: the folder, searched with its subfolders.

    Raises:
        SettingsError: the folder does not exist, or a file is not in the tool's format.
    """
    if not folder.is_dir():
        raise SettingsError(f"{folder} is not a folder")
    try:
        return list(READERS[origin](folder))
    except _UNREADABLE as error:
        raise SettingsError(
            f"{folder} does not hold what {origin} writes: {type(error).__name__}: {error}"
        ) from None
