"""What the library says: its log, and texts, numbers and names in messages and records."""

import getpass
import logging
import re
import socket
import time
from functools import cache

from .fork_lock import ForkLock

_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]"
)
"""What moves a cursor, colours a terminal, turns a line's direction or is not seen at all, but tabs
and line ends."""


def printable(text: str) -> str:
    """Return a text with its control characters escaped, as JSON writes them."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def printable_output(value: object) -> object:
    """Return a value for a template's output, with control characters escaped if it is a text."""
    return type(value)(printable(value)) if isinstance(value, str) else value


def counted(number: int, noun: str, plural: str = "", *, grouped: bool = False) -> str:
    """Return a number with its noun: `1 record`, `2 records`.

    The noun may have a verb (`record is`). Without a plural, it gets an s; commas may group digits.
    """
    digits = f"{number:,}" if grouped else str(number)
    return f"{digits} {noun if number == 1 else plural or f'{noun}s'}"


def size_text(size: int) -> str:
    """Return a number of bytes with its unit: `34.2 KiB`, `1.5 MiB`."""
    return f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{size / 2**10:.1f} KiB"


def seconds_text(seconds: float) -> str:
    """Return a number of seconds in two digits, or whole: `0.71 s`, `1,234 s`."""
    return f"{seconds:.2g} s" if seconds < 99.5 else f"{seconds:,.0f} s"


@cache
def whoami() -> str:
    """Return the user and the host, as `user@host`; what is no text in them is a question mark."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = "unknown"
    name = f"{user}@{socket.gethostname()}"[:150]
    return name.encode("utf-8", "replace").decode("utf-8")


logger = logging.getLogger("dejavu_cache")

_said: set[str] = set()
_lock = ForkLock()


def warn_once(about: str, message: str) -> None:
    """Log a warning, unless this process has already logged one about the same subject."""
    with _lock:
        if about in _said:
            return
        _said.add(about)
    logger.warning(printable(message))  # it may quote a stranger's file, or its name


LINE_EVERY = 10.0
"""Seconds between two lines about the progress of the same work."""


class Progress:
    """Logs how far long work is, at most every ten seconds, so that short work says nothing."""

    def __init__(self, subject: str) -> None:
        """Begin the work now."""
        self.subject = subject
        self._started = self._logged = time.monotonic()

    def show(self, state: str) -> None:
        """Log a state unless the last line is too young."""
        now = time.monotonic()
        if now - self._logged >= LINE_EVERY:
            self._logged = now
            logger.info("%s: %s after %.0f s", self.subject, state, now - self._started)


@cache
def show_log(level: str) -> None:
    """Write the log to standard error from a level on, once per process.

    The level is one of `logging`, in lower case; if it is empty, the program's handlers decide.
    """
    if not level:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False  # else a program that logs too would print each line twice
