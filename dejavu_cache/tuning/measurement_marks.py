"""Marks of the configs that processes measure, which outlive a process that dies there.

A config that ends its process leaves no measurement. Without a mark, the next process would measure
it again and die of it, too. A mark is a file in the user's cache folder, locked while its process
lives, so that any process can tell whether the other one is gone, whatever its id and namespace.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pydantic import ValidationError

from ..model.record import Measurement
from ..model.scenario import Config, Context, FrozenModel, Scenario
from ..system.notices import logger, whoami
from ..system.safe_files import open_folder, user_folder
from .compile_ahead import device_failure_of, failed_measurement

if TYPE_CHECKING:
    from ..system.workers import ParentConnection

FORGOTTEN_AFTER = 86_400.0
"""Seconds for which a mark counts: the process may have been ended by somebody else.

One from the future, dated by a clock that was put back since, would count until then: it counts as
long as one from the past.
"""

_MOST_BYTES = 1 << 16

_OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class _Mark(FrozenModel):
    """Content of a mark: the config, and the process, its user and host for people to look at."""

    config: Config
    pid: int
    host: str


class Suspect(NamedTuple):
    """A config that a process was measuring when it died.

    Attributes:
        config: the config.
        reason: what happened to the process.
        path: the mark's file.
    """

    config: Config
    reason: str
    path: Path

    def forget(self) -> None:
        """Remove the mark: the config has been measured since."""
        with suppress(OSError):
            self.path.unlink()


class MeasurementMark:
    """The mark of this process for one scenario; a file that cannot be written marks nothing.

    A parent, which replaces this process if a config ends it, as in a sweep, is told of each config
    that is about to touch the device.

    Attributes:
        crash: the failure of the config that left the device unusable, to be recorded.
    """

    def __init__(
        self, context: Context, scenario: Scenario, parent: ParentConnection | None = None
    ) -> None:
        """Choose the file's name; the first measurement creates it."""
        name = f"{context.digest}-{scenario.digest}-{secrets.token_hex(8)}.json"
        self.crash: Measurement | None = None
        self._path = user_folder("measuring") / name
        self._parent = parent
        self._handle: int | None = None

    @contextmanager
    def around(self, config: Config) -> Iterator[None]:
        """Mark a config while the context is open.

        An error that leaves the device unusable keeps the mark: what is recorded of it may get lost
        with the process.
        """
        if self._parent is not None:
            self._parent.send("config", config=config.model_dump())
        mark = _Mark(config=config, pid=os.getpid(), host=whoami())
        self._write(mark.model_dump_json())
        try:
            yield
        except BaseException as error:
            failure = device_failure_of(error)
            if failure is not None and self.crash is None:
                self.crash = failed_measurement(config, failure)
            raise
        finally:
            if self.crash is None:
                self._write("")

    def close(self) -> None:
        """Remove the mark, unless the device was lost."""
        if self._handle is None:
            return
        if self.crash is None:
            with suppress(OSError):
                self._path.unlink()
        os.close(self._handle)
        self._handle = None

    def _write(self, line: str) -> None:
        root, flags = self._path.parent, os.O_RDWR | os.O_CREAT | os.O_EXCL | _OPEN
        try:
            if self._handle is None:
                with open_folder(root, root, create=True) as folder:
                    for name in os.listdir(folder):
                        with suppress(OSError):
                            age = time.time() - os.stat(name, dir_fd=folder).st_mtime
                            if abs(age) > FORGOTTEN_AFTER:
                                os.unlink(name, dir_fd=folder)
                    self._handle = os.open(self._path.name, flags, 0o600, dir_fd=folder)
                with suppress(OSError):  # On a file system without locks, every process looks dead.
                    fcntl.flock(self._handle, fcntl.LOCK_EX)
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, line.encode(), 0)
        except OSError as error:
            logger.debug("%s cannot be written: %s", self._path, error)


def find_suspects(context: Context, scenario: Scenario) -> list[Suspect]:
    """Return the configs of a scenario during which processes of this user have died.

    A process that was killed for another reason looks the same, so a suspicion ends after a day.
    """
    suspects, beginning = list[Suspect](), f"{context.digest}-{scenario.digest}-"
    with suppress(OSError):
        for name in os.listdir(folder := user_folder("measuring")):
            with suppress(OSError, ValidationError):
                if name.startswith(beginning) and (suspect := _read(folder / name)):
                    suspects.append(suspect)
    return suspects


def _read(path: Path) -> Suspect | None:
    """Return what a mark says; None while its process lives, or if it measured nothing."""
    handle = os.open(path, os.O_RDWR | _OPEN)
    try:
        age = time.time() - os.fstat(handle).st_mtime
        line = os.pread(handle, _MOST_BYTES, 0)
        if not line or abs(age) > FORGOTTEN_AFTER or _is_locked(handle):
            return None
    finally:
        os.close(handle)
    mark = _Mark.model_validate_json(line)
    reason = f"process {mark.pid} of {mark.host} ended while it measured it"
    return Suspect(mark.config, reason, path)


def _is_locked(handle: int) -> bool:
    """Return whether a mark's process still has its lock; readers share theirs."""
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False
