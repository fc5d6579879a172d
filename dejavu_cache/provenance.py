"""Who is doing this, as records and leases tell it."""

from __future__ import annotations

import getpass
import socket
from functools import cache

__all__ = ["whoami"]


@cache
def whoami() -> str:
    """User and host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"[:150]
