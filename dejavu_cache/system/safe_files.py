"""Read and write files in folders that other users may write to, without following links.

A link that somebody planted could turn a write into one to a file of the victim, and a read into
one of a device that never ends. Every folder below a given root is opened by itself and without
following links, and files are named relative to an open folder, so that nothing can be exchanged
between a check and its use.

A container's user may have no home, no entry in the user database and no folder to write to. Only
this module asks where the user's folders are: for what can be made again or waits to be sent, and
for what lasts.
"""

import errno
import hashlib
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Literal

from platformdirs import PlatformDirs

from ..errors import SettingsError
from .notices import warn_once

MAX_BYTES = 1 << 30
"""Size of the largest file that is read whole."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # opening a pipe would wait for its writer


@contextmanager
def open_folder(root: Path, folder: Path, *, create: bool = False) -> Iterator[int]:
    """Open a folder below a root, and yield its descriptor.

    Args:
        root: a folder that is trusted to be where it is; links to it are followed.
        folder: the root, or a folder below it.
        create: whether to create missing folders, the root included.

    Raises:
        OSError: it does not exist or cannot be opened, or a link is in the way.
    """
    if create:
        root.mkdir(parents=True, exist_ok=True)
    handle = os.open(root, _FOLDER)
    try:
        for name in folder.relative_to(root).parts:
            if create:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=handle)
            try:
                # Never named twice: an error, or Ctrl-C, in between would have it closed twice.
                handle, outer = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=handle), handle
            except NotADirectoryError:  # as Linux calls a link, too
                if stat.S_ISLNK(os.lstat(name, dir_fd=handle).st_mode):
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(folder)) from None
                raise
            os.close(outer)
        yield handle
    finally:
        os.close(handle)


def _refuse_special_file(handle: int, path: Path) -> None:
    mode = os.fstat(handle).st_mode
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is neither a file nor a folder", str(path))


@contextmanager
def open_to_read(path: Path, root: Path | None = None) -> Iterator[IO[bytes]]:
    """Yield a regular file; it must be no link, nor what is between `root` and it.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    with open_folder(root or path.parent, path.parent) as folder:
        handle = os.open(path.name, os.O_RDONLY | _FILE, dir_fd=folder)
    try:
        _refuse_special_file(handle, path)
        with open(handle, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(handle)


def read_file(path: Path, root: Path | None = None) -> bytes:
    """Return the content of a regular file of at most `MAX_BYTES` bytes, as `open_to_read` does.

    Raises:
        OSError: it cannot be read, is no regular file, or is larger (`EFBIG`).
    """
    with open_to_read(path, root) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_BYTES:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
        return file.read(size)  # the buffer has this size at once, also for a file that is shorter


def sha256_of(file: IO[bytes]) -> str:
    """Return the SHA-256 of the rest of an open file, in hexadecimal."""
    digest = hashlib.sha256()
    while block := file.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def replace_file(
    path: Path, data: bytes, root: Path | None = None, *, durable: bool = True
) -> None:
    """Write a file atomically, by a new file that is synced and renamed.

    A link with the file's name is replaced and not followed.

    Args:
        path: the file; its folders are created.
        data: its content.
        root: below it, links are not followed; None: the file's own folder.
        durable: whether the file survives a loss of power right after the call.

    Raises:
        OSError: it cannot be written, or could not be read again since it is larger than
            `MAX_BYTES` (`EFBIG`); an earlier file is unchanged.
    """
    if len(data) > MAX_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    with open_replacement(path, root, durable=durable) as file:
        file.write(data)


@contextmanager
def open_replacement(
    path: Path, root: Path | None = None, *, mode: int = 0o666, durable: bool = True
) -> Iterator[IO[bytes]]:
    """Yield a new file that replaces `path` as `replace_file` does once the block has ended.

    If the block raises, an earlier file is unchanged and the new one is removed. `mode` has the
    permissions, before the umask.
    """
    temporary = f"{path.name}.tmp-{os.getpid()}-{secrets.token_hex(8)}"
    with open_folder(root or path.parent, path.parent, create=True) as folder:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE
        handle = os.open(temporary, flags, mode, dir_fd=folder)
        try:
            with open(handle, "wb") as file:
                yield file
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            os.replace(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            raise
        if durable:
            try:
                os.fsync(folder)
            except OSError as error:  # some network file systems sync files alone
                if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                    raise


def open_named_file(path: Path) -> AbstractContextManager[IO[bytes]]:
    """Open a file that a person has named, to be written as `open_replacement` does.

    Pipes and devices, which it would replace, are written directly.

    Raises:
        OSError: it cannot be written, or its folder does not exist.
    """
    if path.exists() and not path.is_file():
        return open(path, "wb")
    os.stat(path.parent)  # a mistyped folder is an error, and not made
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o666
    return open_replacement(path, mode=mode)  # a link is replaced, and not followed


def open_to_append(path: Path) -> int:
    """Open a regular file of this user for appending, and return its descriptor.

    Raises:
        OSError: it cannot be written, is a link, or belongs to another user.
    """
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _FILE, 0o666)
    try:
        _refuse_special_file(handle, path)
        status = os.fstat(handle)
        if status.st_uid != os.geteuid() or status.st_nlink > 1:
            raise OSError(errno.EPERM, "somebody else put a file there", str(path))
    except OSError:
        os.close(handle)
        raise
    return handle


def user_folder(name: str) -> Path:
    """Return a folder of the package's in the user's cache folder, which need not be there.

    A user who has no such folder gets one among the temporary files, with one warning.
    """
    folder, reason = _user_path("cache"), "the home folder is not known"
    if folder is not None:
        nearest = folder
        while not os.path.lexists(nearest):
            nearest = nearest.parent
        # It can be read, or can be made where there is none.
        needed = os.X_OK | (os.R_OK if nearest == folder else os.W_OK)
        if os.path.isdir(nearest) and os.access(nearest, needed):
            return folder / name
        reason = f"{folder} cannot be used"
    folder = private_temporary_folder()
    warn_once(
        "user folder",
        f"this user has no cache folder ({reason}): {folder} is used until it is cleared; "
        "set XDG_CACHE_HOME, or DEJAVU_CACHE_URL for the records, to a folder of this user's",
    )
    return folder / name


def data_folder() -> Path:
    """Return the package's folder in this user's data folder, which need not be there.

    Raises:
        SettingsError: the home folder of this user is not known.
    """
    folder = _user_path("data")
    if folder is None:
        raise SettingsError("the home folder of this user is not known: set HOME or XDG_DATA_HOME")
    return folder


def _user_path(kind: Literal["cache", "data"]) -> Path | None:
    """Return where this user's files of a kind belong, or None if no home is known."""
    dirs = PlatformDirs("dejavu-cache", appauthor=False)
    try:
        folder = Path(dirs.user_cache_dir if kind == "cache" else dirs.user_data_dir)
    except RuntimeError:  # earlier versions return a path that begins with ~, or is relative
        return None
    return folder if folder.is_absolute() else None


@cache
def private_temporary_folder() -> Path:
    """Return a temporary folder that only this user can write to: what is in it may be trusted.

    The user's processes share it, unless somebody else took its name. Where no temporary file can
    be written, it is a folder that cannot be made: a write to it fails, as on a full disk.
    """
    try:
        folder = Path(tempfile.gettempdir(), f"dejavu-cache-{os.getuid()}")
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        status = folder.lstat()
        is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
        if is_own and not stat.S_IMODE(status.st_mode) & 0o077:
            return folder
        return Path(tempfile.mkdtemp(prefix="dejavu-cache-"))
    except OSError:
        return Path(os.devnull, "dejavu-cache")


def expand_home(path: str | os.PathLike[str]) -> Path:
    """Return a path that may begin with a user's home (`~`).

    Raises:
        SettingsError: it does, and the home is not known.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise SettingsError(
            f"{str(path)!r}: the home folder of this user is not known: write the whole path, "
            f"or ./{path} for a folder of that name"
        ) from None
