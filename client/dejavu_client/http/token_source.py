"""The token that a client sends: given as text, or read from a file that may be replaced."""

from __future__ import annotations

import os
import re
from pathlib import Path

from dejavu_cache.system.notices import warn_once

__all__ = ["TokenSource"]

_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")
"""Characters of a bearer token (RFC 6750)."""


class TokenSource:
    """A token, read again whenever its file has changed.

    A text that cannot be a token is never sent, and no message contains it.
    """

    def __init__(self, token: str = "", file: str | Path = "") -> None:
        """Take the token from a file, or from a text if no file is named."""
        self._file = Path(os.path.expanduser(file)) if file else None  # raises nothing
        self._state: tuple[int, int, int] | None = None
        self._headers = _headers(token, "DEJAVU_CACHE_TOKEN")

    def headers(self) -> dict[str, str]:
        """Return the headers that carry the token; none without one."""
        if self._file is not None:
            try:
                status = os.stat(self._file)
                state = (status.st_mtime_ns, status.st_ino, status.st_size)
                if state != self._state:
                    text = self._file.read_text(encoding="utf-8", errors="replace")
                    # Who writes a file in place empties it first: the new token is on its way.
                    if text.strip():
                        self._headers = _headers(text, str(self._file))
                    self._state = state
            except OSError as error:
                # The last token stays: a file may be away for a moment while it is replaced.
                warn_once(f"token file {self._file}", f"{self._file} cannot be read: {error}")
        return self._headers


def _headers(text: str, source: str) -> dict[str, str]:
    # Files and secrets often end with a line break, and environment files may keep quotes.
    token = text.strip().strip("\"'").strip()
    if not token:
        return {}
    if _TOKEN.fullmatch(token) is None:
        warn_once(
            f"token of {source}",
            f"{source} has characters that no token has, so no token is sent: copy it again",
        )
        return {}
    return {"Authorization": f"Bearer {token}"}
