"""Errors of a server, under `dejavu_cache.errors.StoreError`.

StoreError
└── RemoteError
    ├── UnreachableError    no answer, none in time, or "try again later"
    ├── RefusedError        the request is forbidden or invalid
    └── NonsenseError       the answer does not follow the protocol
"""

from __future__ import annotations

from dejavu_cache.errors import StoreError

__all__ = ["NonsenseError", "RefusedError", "RemoteError", "UnreachableError"]


class RemoteError(StoreError):
    """A request to a server failed."""


class UnreachableError(RemoteError):
    """The server is down, too slow or overloaded; a later request may succeed."""


class RefusedError(RemoteError):
    """The server refused the request; repeating it unchanged will not help.

    Attributes:
        status: the HTTP status.
    """

    def __init__(self, message: str, status: int) -> None:
        """Keep the HTTP status beside the message."""
        super().__init__(message)
        self.status = status


class NonsenseError(RemoteError):
    """The answer does not follow the protocol."""
