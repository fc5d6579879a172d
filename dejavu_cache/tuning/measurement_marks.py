"""Marks of the configs that processes measure, which outlive a process that dies or hangs there.

A config that ends its process leaves no measurement. Without a mark, the next process would measure
it again and die of it, too. A mark is a file in the user's cache folder, locked while its process
lives, so that any process can tell whether the other one is gone, whatever its id and namespace.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from ..model.scenario import Config, Context, FrozenModel, Scenario
from ..system.background_threads import Finisher, at_program_end
from ..system.notices import logger
from ..system.safe_files import open_folder, user_folder
from .compile_ahead import device_failure_of

__all__ = ["MeasurementMark", "Suspect", "find_suspects"]

HUNG_AFTER = 600.0
"""Seconds on one config after which a living process counts as hung; compiling takes minutes."""

FORGOTTEN_AFTER = 86_400.0
"""Seconds for which a mark counts: the process may have been ended by somebody else."""

_ORDINARY_END = 60.0
"""Seconds on one config up to which a signal that asks a process to end is no sign against it."""

_ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Signals by which people and schedulers end programs."""

_TRACE = b"Stack (most recent call first):"
"""Beginning of what `faulthandler` writes when one of these signals comes."""

_MOST_BYTES = 1 << 16

_OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class _Mark(FrozenModel):
    """Content of a mark: the config, and the process for people to look at."""

    config: Config
    pid: int
    host: str
    since: float = 0.0
    """Time at which the measurement began, in seconds since 1970."""
    started: str = ""
    """Start of the process in the kernel's clock, which another program in it keeps."""

    @property
    def is_replaced(self) -> bool:
        """Whether the process runs another program now, of which its mark says nothing."""
        is_here = self.host == socket.gethostname()
        return is_here and self.started != "" and _start_of(self.pid) == self.started


class Suspect(NamedTuple):
    """A config that a process was measuring when it died or hung.

    Attributes:
        config: the config.
        reason: what happened to the process.
        is_hung: whether the process still runs, and may hold the scenario's lease.
        path: the mark's file.
    """

    config: Config
    reason: str
    is_hung: bool
    path: Path

    def forget(self) -> None:
        """Remove the mark: the config has been measured since."""
        with suppress(OSError):
            self.path.unlink()


class MeasurementMark(Finisher):
    """The mark of this process for one scenario; a file that cannot be written marks nothing.

    Args:
        context: the kernel, environment and problem.
        scenario: the scenario that is tuned.
    """

    def __init__(self, context: Context, scenario: Scenario) -> None:
        """Choose the file's name; the first measurement creates it."""
        name = f"{_prefix(context, scenario)}{secrets.token_hex(8)}.json"
        self._path = _folder() / name
        self._handle: int | None = None
        self._stays = self._has_ended = False
        self._process, self._since = os.getpid(), 0.0

    @contextmanager
    def around(self, config: Config) -> Iterator[None]:
        """Mark a config while the context is open.

        An error that leaves the device unusable keeps the mark: what is recorded of it may get lost
        with the process.
        """
        self._since = time.time()
        pid = os.getpid()
        mark = _Mark(
            config=config,
            pid=pid,
            host=socket.gethostname(),
            since=self._since,
            started=_start_of(pid),
        )
        self._write("")
        # A signal must find the trace ready for as long as the config stands in the file.
        with _trace_end(self._handle):
            self._write(mark.model_dump_json())
            try:
                yield
            except BaseException as error:
                self._stays = self._stays or device_failure_of(error) is not None
                raise
            finally:
                if not self._stays:
                    self._write("")

    def close(self) -> None:
        """Remove the mark, unless the device was lost."""
        if self._handle is None:
            return
        if not self._stays:
            with suppress(OSError):
                self._path.unlink()
        os.close(self._handle)
        self._handle = None

    def interrupt(self) -> None:
        """Empty the mark: the program ends while another of its threads tunes.

        The end of a forked child says nothing of the measurement, which its parent makes.
        """
        is_short = time.time() - self._since <= _ORDINARY_END
        is_own = self._handle is not None and self._process == os.getpid()
        if is_own and is_short and not self._stays:
            self._write("")
            self._has_ended = True

    def _write(self, line: str) -> None:
        """Replace the file's content; a trace would be written behind it."""
        if self._has_ended:
            return
        try:
            if self._handle is None:
                self._handle = self._create()
            content = f"{line}\n".encode()
            os.pwrite(self._handle, content, 0)
            os.ftruncate(self._handle, len(content))
            os.lseek(self._handle, len(content), os.SEEK_SET)
        except OSError as error:
            logger.debug("%s cannot be written: %s", self._path, error)

    def _create(self) -> int:
        _remove_marks_of_earlier_programs()
        _remove_old_marks()
        root = self._path.parent
        with open_folder(root, root, create=True) as folder:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _OPEN
            handle = os.open(self._path.name, flags, 0o600, dir_fd=folder)
        with suppress(OSError):  # On a file system without locks, every process looks dead.
            fcntl.flock(handle, fcntl.LOCK_EX)
        at_program_end(self)
        return handle


@contextmanager
def _trace_end(handle: int | None) -> Iterator[None]:
    """Have a trace written to a file if a signal asks this process to end meanwhile.

    The signal then does what it would have done. Python's own handlers would not run while a
    kernel hangs, and the process could not be ended.
    """
    before = {number: signal.getsignal(number) for number in _ENDING if handle is not None}
    for number, handler in before.items():
        if handler == signal.SIG_DFL and handle is not None:
            faulthandler.register(number, handle, all_threads=False, chain=True)
    try:
        yield
    finally:
        for number, handler in before.items():
            # Where the program has set a handler meanwhile, unregistering would remove that one.
            if handler == signal.SIG_DFL == signal.getsignal(number):
                faulthandler.unregister(number)


def find_suspects(context: Context, scenario: Scenario) -> list[Suspect]:
    """Return the configs of a scenario that processes of this user died of or hang in.

    A process that was killed for another reason looks the same, so a suspicion ends after a day.
    """
    _remove_marks_of_earlier_programs()
    prefix = _prefix(context, scenario)
    suspects = []
    for path in (path for path in _marks() if path.name.startswith(prefix)):
        with suppress(OSError):
            suspects.append(_read(path))
    return [suspect for suspect in suspects if suspect is not None]


def _read(path: Path) -> Suspect | None:
    """Return what a mark says; None while its process is well, or if it measured nothing.

    A process that replaces its program, by `execv`, is well: its lock is gone, and it is not.
    """
    handle = os.open(path, os.O_RDWR | _OPEN)
    try:
        age = time.time() - os.fstat(handle).st_mtime
        is_alive = _is_locked(handle)
        line, _, trace = os.pread(handle, _MOST_BYTES, 0).partition(b"\n")
    finally:
        os.close(handle)
    if not line or _is_forgotten(age) or (is_alive and age <= HUNG_AFTER):
        return None
    try:
        mark = _Mark.model_validate_json(line)
    except ValidationError:
        return None
    if not is_alive and mark.is_replaced:
        return None
    lasted = time.time() - mark.since - age
    if trace.startswith(_TRACE) and not is_alive and lasted <= _ORDINARY_END:
        return None
    end = f"has been measuring it for {age:.0f} s" if is_alive else "ended while it measured it"
    return Suspect(mark.config, f"process {mark.pid} on {mark.host} {end}", is_alive, path)


def _is_forgotten(age: float) -> bool:
    """Return whether a mark of an age in seconds no longer counts.

    One from the future was dated by a clock that was put back since, and would count until then.
    """
    return abs(age) > FORGOTTEN_AFTER


def _is_locked(handle: int) -> bool:
    """Return whether a mark's process still has its lock; readers share theirs."""
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


@cache
def _remove_marks_of_earlier_programs() -> None:
    """Remove the marks of programs that this process has replaced, which end only once."""
    _remove_marks(_is_of_earlier_program)


def _remove_old_marks() -> None:
    """Remove the marks of processes that are gone and measured nothing, or ended long ago."""
    _remove_marks(lambda handle: _is_forgotten(time.time() - os.fstat(handle).st_mtime))


def _remove_marks(is_over: Callable[[int], bool]) -> None:
    for path in _marks():
        with suppress(OSError):
            handle = os.open(path, os.O_RDWR | _OPEN)
            try:
                if is_over(handle) and not _is_locked(handle):
                    path.unlink()
            finally:
                os.close(handle)


def _is_of_earlier_program(handle: int) -> bool:
    """Return whether a mark, unless it is locked, is of a program that ran in this process."""
    try:
        mark = _Mark.model_validate_json(os.pread(handle, _MOST_BYTES, 0).partition(b"\n")[0])
    except ValidationError:
        return False
    return mark.pid == os.getpid() and mark.is_replaced


def _start_of(pid: int) -> str:
    """Return when a process was started, in ticks since the machine was; empty if it is gone."""
    try:
        # The command in parentheses may hold anything, also spaces and parentheses.
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return ""
    return "" if state in "ZXx" else fields[18]


def _marks() -> list[Path]:
    folder = _folder()
    try:
        return [folder / name for name in os.listdir(folder)]
    except OSError:
        return []


def _folder() -> Path:
    return user_folder("measuring")


def _prefix(context: Context, scenario: Scenario) -> str:
    return f"{context.digest}-{scenario.digest}-"
