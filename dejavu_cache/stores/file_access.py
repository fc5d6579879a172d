"""Find, read and write files for `stores.file`, and report on failures."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from ..errors import DamagedRecordsError, StoreError
from ..system.safe_files import read_file, replace_file

__all__ = [
    "describe_failure",
    "differ_in_case_alone",
    "find_files",
    "folder_name",
    "read_text",
    "write_text",
]

_ERRORS_OF_FOREIGN_FILES = {errno.ELOOP, errno.EINVAL, errno.EFBIG, errno.ENXIO}
"""Errors of opening a link, a device, a file that is too large, and a socket."""

_REMEDIES = {
    errno.EACCES: "give this user access, or point DEJAVU_CACHE_URL elsewhere",
    errno.EPERM: "give this user access, or point DEJAVU_CACHE_URL elsewhere",
    errno.EROFS: "the file system is read-only: add ?read_only=1 to its URL, "
    "or point DEJAVU_CACHE_URL elsewhere",
    errno.ENOSPC: "the disk is full: make room; what was there before is untouched",
    errno.EDQUOT: "the quota is used up: make room; what was there before is untouched",
    errno.ENOTDIR: "a file stands where a folder is needed",
    errno.EEXIST: "a file stands where a folder is needed",
    errno.EISDIR: "a folder stands where a file is needed",
    errno.ELOOP: "a symbolic link stands there, and links are not followed: "
    "replace it by what it points to",
}


def read_text(path: Path, root: Path) -> str:
    """Return the text of a file in a store's folder.

    Raises:
        DamagedRecordsError: it is not text, or something that no store wrote: a link, a pipe, …
        OSError: it cannot be read.
    """
    try:
        content = read_file(path, root)
        if b"\0" in content:  # a sparse file of any length costs nothing on the disk
            raise DamagedRecordsError(f"{path} is damaged: it has NUL bytes")
        return content.decode()
    except UnicodeDecodeError as error:
        raise DamagedRecordsError(f"{path} is damaged: {error}") from None
    except OSError as error:
        if error.errno in _ERRORS_OF_FOREIGN_FILES and error.filename in (path.name, str(path)):
            raise DamagedRecordsError(f"{path} is no file of records: {error.strerror}") from None
        raise


def write_text(path: Path, text: str, root: Path) -> None:
    """Write a file in a store's folder atomically and durably.

    Raises:
        StoreError: the file cannot be written; an earlier one is unchanged.
    """
    try:
        replace_file(path, text.encode(), root)
    except OSError as error:
        raise describe_failure(error, path, "written") from error


def describe_failure(error: OSError, path: Path, action: str) -> StoreError:
    """Return a store's error for a failed access, with a remedy where one is known.

    Args:
        error: the operating system's error.
        path: the file or folder.
        action: a participle that completes "PATH cannot be ...", such as "read".
    """
    remedy = _REMEDIES.get(error.errno or 0, "")
    return StoreError(
        f"{path} cannot be {action}: {error.strerror or error}{'; ' + remedy if remedy else ''}"
    )


def find_files(
    root: Path, ending: str, *, except_for: str | None = None
) -> list[tuple[Path, OSError | None]]:
    """Return the files below a folder in order, with None, and the folders that cannot be listed.

    Args:
        root: the folder; it need not exist. Hidden folders in it are left out.
        ending: how the files' names end.
        except_for: a longer ending of files to leave out.
    """
    errors: list[OSError] = []
    paths: list[tuple[Path, OSError | None]] = []
    for parent, folders, names in os.walk(root, onerror=errors.append):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if name.endswith(ending) and not (except_for and name.endswith(except_for)):
                paths.append((Path(parent, name), None))
    for error in errors:
        if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
            paths.append((Path(error.filename), error))
    return sorted(paths, key=lambda found: found[0])


def folder_name(name: str) -> str:
    """Return a name as a folder's name that people recognise and every file system accepts."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:120] or "_"


def differ_in_case_alone(path: Path, other: Path) -> bool:
    """Return whether two paths are one file, of a file system that ignores the case of names.

    There, the folder of `pkg.Add` is the folder of `pkg.add` too.
    """
    is_alike = str(path).casefold() == str(other).casefold()
    return is_alike and path.exists() and path.samefile(other)
