"""Files that commands write: replaced when they are complete, and untouched otherwise."""

from __future__ import annotations

import io
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, TextIO

from dejavu_cache.errors import StoreError
from dejavu_cache.system.safe_files import open_replacement

__all__ = ["open_output"]


@contextmanager
def open_output(file: str) -> Iterator[TextIO]:
    """Yield a text file to write; the file of that name is replaced after the block.

    If the block raises, what was there before stays. Pipes and devices are written directly.

    Args:
        file: the path, whose folder must exist; `-` is standard output.

    Raises:
        StoreError: the file cannot be written.
    """
    if file == "-":
        if isinstance(sys.stdout, io.TextIOWrapper):  # files are UTF-8, whatever the terminal is
            sys.stdout.reconfigure(encoding="utf-8")
        yield sys.stdout
        return
    path = Path(file)
    try:
        with _open_binary(path) as binary:
            text = io.TextIOWrapper(binary, encoding="utf-8", newline="\n", write_through=True)
            yield text
            text.flush()
            text.detach()
    except OSError as error:
        raise StoreError(
            f"{file} cannot be written: {error.strerror or error}; "
            "what was there before is unchanged"
        ) from None


def _open_binary(path: Path) -> AbstractContextManager[IO[bytes]]:
    if path.is_symlink() or (path.exists() and not path.is_file()):
        return open(path, "wb", opener=_open_no_link)
    os.stat(path.parent)  # a mistyped folder is an error, and not made
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o666
    return open_replacement(path, mode=mode)


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)
