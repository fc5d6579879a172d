"""Write a folder that appears only once it is complete."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...errors import BundleError

__all__ = ["new_folder"]


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Make a working folder, which takes its name at the end, unless an error is raised.

    Args:
        out: the folder to write; it may be there if it is empty.

    Raises:
        BundleError: the folder is there already, or cannot be written.
    """
    try:
        out = out.resolve()
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise BundleError(f"{out} is there already: name a new folder, or remove it")
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        reason = getattr(error, "strerror", None) or error
        raise BundleError(f"{out} cannot be written: {reason}") from None
    if out.is_mount():
        raise BundleError(
            f"{out} is a mount point, which cannot be replaced: name a folder in it, as in "
            f"{out / 'now'}"
        )
    work = out.with_name(f".{out.name}.{uuid.uuid4().hex[:8]}")
    try:
        work.mkdir(parents=True)
        yield work
        if out.exists():
            out.rmdir()
        work.rename(out)
    except OSError as error:
        raise BundleError(f"{out} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
