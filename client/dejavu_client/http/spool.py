"""Records that a server has yet to get, on disk."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout
from platformdirs import user_cache_dir
from pydantic import ValidationError

from dejavu_cache.model.record import RecordSet
from dejavu_cache.model.scenario import canonical_json
from dejavu_cache.notices import warn_once

__all__ = ["Spool"]


class Spool:
    """One folder per server and namespace, one file per record set, named by its content.

    A file goes only after the server has taken it, and sending it twice is the same as once, so whatever
    dies in between, the server ends up with each record once.
    """

    def __init__(self, server: str, root: Path | None = None) -> None:
        name = hashlib.sha256(server.encode()).hexdigest()[:16]
        self.folder = (
            root or Path(user_cache_dir("dejavu-cache", appauthor=False)) / "spool"
        ) / name

    def __len__(self) -> int:
        return len(list(self.folder.glob("*.json")))

    def keep(self, whole: RecordSet) -> None:
        """Writes a record set down; if that fails too, it is lost to this server, and said."""
        text = canonical_json(whole)
        path = self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"
        temporary = path.with_suffix(f".tmp-{os.getpid()}-{threading.get_ident()}")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with temporary.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            warn_once(
                f"{self.folder}",
                f"what the server has yet to get cannot be kept in {self.folder}: {error}",
            )

    def drain(self, send: Callable[[RecordSet], None]) -> int:
        """Sends what is kept, unless another process is at it, and says how many sets went.

        `send` raises to stop the draining: that file and the rest stay.
        """
        if not len(self):
            return 0
        sent = 0
        try:
            with FileLock(self.folder / ".lock", timeout=0):
                for path in sorted(self.folder.glob("*.json")):
                    whole = _read(path)
                    if whole is not None:
                        send(whole)
                        path.unlink(missing_ok=True)
                        sent += 1
        except (Timeout, OSError):
            pass
        return sent


def _read(path: Path) -> RecordSet | None:
    try:
        return RecordSet.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError:
        aside = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
        path.replace(aside)
        warn_once(f"{path}", f"{path} is damaged; it is kept as {aside.name}")
        return None
