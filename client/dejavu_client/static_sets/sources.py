"""Where the files of a set are, and how long a launch waits for one of them."""

import math
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYetError
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes, urlsplit

from dejavu_cache.errors import SettingsError, StoreError
from dejavu_cache.stores import current_look
from dejavu_cache.system import safe_files
from dejavu_cache.system.background_threads import start_thread
from dejavu_cache.system.notices import size_text

from ..http.errors import NonsenseError, RefusedError, SilenceError, UnreachableError
from ..http.transport import WHOLE_SECONDS, ServerAnswer, Transport
from .signed_index import refusal

SILENT_SECONDS = 30.0
"""Seconds within which a server sends an answer's headers."""

SLOWEST = 16 * 1024
"""Bytes a second that a server sends at least, beyond `WHOLE_SECONDS` for each file."""

PAUSE_SECONDS = 60.0
"""Time for which a place is left alone that could not be reached, or a file that was refused."""


_transport = Transport()  # its deadlines interrupt all its requests: none of a team's server
os.register_at_fork(after_in_child=_transport.abandon)

_T = TypeVar("_T")


class Source(ABC):
    """A place that has a set's files.

    Args:
        url: the place, without a key.
        wait: seconds for which a launch waits for a file; commands set more.
    """

    def __init__(self, url: str, wait: float) -> None:
        """Read nothing yet."""
        self.url, self.wait = url, wait
        self._failures: dict[str, tuple[str, float]] = {}
        self._fetches: dict[str, Future[Any]] = {}
        self._slow, self._process = "", os.getpid()

    @abstractmethod
    def read(self, name: str, largest: int, etag: str = "") -> tuple[bytes, str] | None:
        """Return a file and its entity tag, or None if it still has the one that is given."""

    def is_fetching(self, name: str) -> bool:
        """Return whether a fetch has not ended yet."""
        return name in self._fetches

    def fetch(self, name: str, work: Callable[[], _T], seconds: float) -> _T:
        """Do what fetches a file, once at a time, and wait until it has taken some seconds.

        It goes on without who has left, in a thread, and no launch that could do without waits for
        a second file meanwhile. After a failure, the file is left alone for a while; so is the
        place, if it could not be reached.

        Raises:
            SilenceError: it goes on.
            StoreError: it failed, or an earlier one did a moment ago.
        """
        if self._process != os.getpid():  # a forked child has none of its parent's threads
            self._fetches, self._process = {}, os.getpid()
        for failure, until in filter(None, map(self._failures.get, ("", name))):
            if time.monotonic() < until:
                raise UnreachableError(f"{failure}; it is asked again later")
        fetches, mine = self._fetches, Future[_T]()
        future = fetches.setdefault(name, mine)

        def run() -> None:
            try:
                mine.set_result(work())
            except BaseException as error:
                if isinstance(error, StoreError):
                    failed = "" if isinstance(error, UnreachableError) else name
                    self._failures[failed] = str(error), time.monotonic() + PAUSE_SECONDS
                mine.set_exception(error)
            finally:
                del fetches[name]

        is_local = seconds == math.inf or self.url.startswith("file:")
        if future is mine and (is_local or start_thread(run, "dejavu-cache fetch") is None):
            run()
        elif seconds <= self.wait and self._slow in fetches:
            seconds = 0.0
        look, start = current_look(), time.monotonic()
        try:
            left = None if seconds == math.inf else max(seconds - look.waited, 0.0)
            outcome: _T = future.result(left)
            return outcome
        except NotYetError:
            self._slow = name
            raise SilenceError(f"{self.url}/{name} is being fetched, and used later") from None
        finally:
            look.waited += time.monotonic() - start


class Files(Source):
    """The files of a folder, a web server, a bucket or a release page."""

    def read(self, name: str, largest: int, etag: str = "") -> tuple[bytes, str] | None:
        """Return a file and its entity tag, or None if it still has the one that is given."""
        url = f"{self.url}/{name}"
        if url.startswith("file:"):
            return _read_local(Path(os.fsdecode(unquote_to_bytes(urlsplit(url).path))), largest)
        answer = ask("GET", url, largest, {"If-None-Match": etag} if etag else {})
        if answer.status == 304 and etag:
            return None
        return content_of(answer, url)


def ask(
    method: str, url: str, largest: int, headers: dict[str, str], **request: Any
) -> ServerAnswer:
    """Send a request, and return the answer, whatever its status."""
    try:
        return _transport.send(
            method,
            url,
            server=url,
            seconds=SILENT_SECONDS,
            body_seconds=WHOLE_SECONDS + largest / SLOWEST,
            largest=largest,
            headers=headers,
            # A release page keeps its files elsewhere.
            **{"follow_redirects": True, **request},
        )
    except (NonsenseError, SettingsError) as error:  # the latter of a URL that a server has sent
        raise refusal(url[:200], str(error)[:200]) from None


def without_login(url: str) -> str:
    """Return a URL as messages may show it."""
    return re.sub("//.*@", "//", url)


def content_of(answer: ServerAnswer, url: str) -> tuple[bytes, str]:
    """Return what a server has sent and its entity tag; raise an error if it has nothing."""
    if answer.status in (401, 403, 404, 410):
        login = ", and `docker login`" if url.startswith("oci:") else ""
        message = f"{url} is not there ({answer.status}): check the set's URL{login}"
        raise RefusedError(message, answer.status)
    if answer.status != 200:
        raise UnreachableError(f"{url} cannot be read now: it answers {answer.status}")
    return answer.body, answer.headers.get("etag", "")


def _read_local(path: Path, largest: int) -> tuple[bytes, str]:
    try:
        with safe_files.open_to_read(Path(os.path.realpath(path))) as file:  # mounts have links
            data = file.read(largest + 1)
    except FileNotFoundError:
        raise StoreError(f"{path} is not there: check the set's URL") from None
    except OSError as error:
        raise UnreachableError(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > largest:
        raise refusal(str(path), f"it has more than {size_text(largest)}")
    return data, ""
