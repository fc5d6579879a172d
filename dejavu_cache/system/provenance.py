"""Name of the user and machine, for records and leases."""

from __future__ import annotations

import getpass
import socket
from functools import cache

__all__ = ["whoami"]


@cache
def whoami() -> str:
    """Return the user and the host, as `user@host`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"[:150]
