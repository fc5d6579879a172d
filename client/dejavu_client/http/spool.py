"""On-disk spool of records that have not reached their server yet."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout
from platformdirs import user_cache_dir
from pydantic import ValidationError

from dejavu_cache.model.record import RecordSet
from dejavu_cache.model.scenario import canonical_json
from dejavu_cache.notices import warn_once
from dejavu_cache.safe_files import read_file, replace_file

__all__ = ["Spool"]


class Spool:
    """Record sets that wait for one namespace of one server, one file each, named by content.

    A file is deleted only after the server has accepted it, and sending it twice has the same
    effect as sending it once. A process that dies in between therefore loses and repeats nothing.

    Args:
        server: the server's URL with its namespace; each has a folder of its own.
        root: the folder of all spools; by default in the user's cache folder.
    """

    def __init__(self, server: str, root: Path | None = None) -> None:
        """Open the spool of `server` in `root`; its folder is created with the first record set."""
        name = hashlib.sha256(server.encode()).hexdigest()[:16]
        self.folder = (
            root or Path(user_cache_dir("dejavu-cache", appauthor=False)) / "spool"
        ) / name

    def __len__(self) -> int:
        """Return how many record sets wait."""
        return len(list(self.folder.glob("*.json")))

    def add(self, record_set: RecordSet) -> None:
        """Write a record set to disk; warn if even that fails, since the server will not get it."""
        text = canonical_json(record_set)
        path = self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"
        try:
            replace_file(path, text.encode())
        except OSError as error:
            warn_once(
                f"{self.folder}",
                f"records for the server cannot be spooled in {self.folder}: {error}",
            )

    def drain(self, send: Callable[[RecordSet], None]) -> int:
        """Send the spooled record sets and return how many were sent.

        Return at once if another process is draining the same spool.

        Args:
            send: sends one record set; an exception stops the draining, and that file and the
                rest stay.
        """
        if not len(self):
            return 0
        sent = 0
        try:
            with FileLock(self.folder / ".lock", timeout=0):
                for path in sorted(self.folder.glob("*.json")):
                    record_set = _read(path)
                    if record_set is not None:
                        send(record_set)
                        path.unlink(missing_ok=True)
                        sent += 1
        except (Timeout, OSError):
            pass
        return sent


def _read(path: Path) -> RecordSet | None:
    try:
        return RecordSet.model_validate_json(read_file(path))
    except FileNotFoundError:
        return None
    except ValidationError:
        aside = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
        path.replace(aside)
        warn_once(f"{path}", f"{path} is damaged; it is kept as {aside.name}")
        return None
