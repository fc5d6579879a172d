"""Name of the user and machine, for records and leases."""

from __future__ import annotations

import getpass
import socket
from functools import cache

__all__ = ["whoami"]


@cache
def whoami() -> str:
    """Return the user and the host, as `user@host`; what is no text in them is a question mark."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = "unknown"
    name = f"{user}@{socket.gethostname()}"[:150]
    return name.encode("utf-8", "replace").decode("utf-8")
