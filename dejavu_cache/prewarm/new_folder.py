"""Write a folder that appears only once it is complete."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from ..errors import BundleError
from ..stores.manifest import is_prewarmed

__all__ = ["new_folder"]


@contextmanager
def new_folder(out: Path, *, replaces: bool = False) -> Iterator[Path]:
    """Make a working folder, which takes its name at the end, unless an error is raised.

    A working folder that a killed process left for the same name is removed.

    Args:
        out: the folder to write; it may be there if it is empty. What a link to it names is
            written, and not the link.
        replaces: whether an earlier prewarmed folder may be there, which is replaced at the end.

    Raises:
        BundleError: the folder is there already, cannot be written, or another process makes it.
    """
    try:
        out = out.resolve()
        _check_place(out, replaces)
        out.parent.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        raise _failure(out, error) from error
    work, lock_file = (out.with_name(f".{out.name}.{kind}") for kind in ("making", "lock"))
    try:
        with FileLock(lock_file, timeout=0):
            try:
                shutil.rmtree(work, ignore_errors=True)
                work.mkdir()  # fails where somebody put a link
                yield work
                _swap(work, out)
            finally:
                shutil.rmtree(work, ignore_errors=True)
                with suppress(OSError):
                    lock_file.unlink()
    except Timeout:
        raise BundleError(f"another process is making {out}: wait for it") from None
    except OSError as error:
        raise _failure(out, error) from error


def _check_place(out: Path, replaces: bool) -> None:
    may_be_replaced = replaces and is_prewarmed(out)
    if out.exists() and not may_be_replaced and (not out.is_dir() or any(out.iterdir())):
        what = " and is no prewarmed folder" if replaces else ""
        raise BundleError(f"{out} is there already{what}: name a new folder, or an empty one")
    if out.is_mount():
        raise BundleError(
            f"{out} is a mount point, which cannot be replaced: name a folder in it, as in "
            f"{out / 'now'}"
        )


def _failure(out: Path, error: Exception) -> BundleError:
    return BundleError(
        f"{out} cannot be written: {getattr(error, 'strerror', None) or error}; "
        "nothing was left there but what was there before"
    )


def _swap(work: Path, out: Path) -> None:
    """Replace the old folder by the new one, and restore it if that fails."""
    old = out.with_name(f".{out.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        out.rename(old)
    try:
        work.rename(out)
    except BaseException:
        if old.exists() and not out.exists():
            old.rename(out)
        raise
    shutil.rmtree(old, ignore_errors=True)
