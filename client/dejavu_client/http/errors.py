"""What can go wrong with a server, under `dejavu_cache.errors.StoreError`.

StoreError
└── RemoteError
    ├── UnreachableError    nothing answers, in time or at all, or it says that it cannot now
    ├── RefusedError        it answers that we may not, or that what we sent is wrong
    └── NonsenseError       it answers something that is not of the protocol
"""

from __future__ import annotations

from dejavu_cache.errors import StoreError

__all__ = ["NonsenseError", "RefusedError", "RemoteError", "UnreachableError"]


class RemoteError(StoreError):
    """A server did not do what was asked."""


class UnreachableError(RemoteError):
    """The server is away, too slow, or overloaded: worth another try later."""


class RefusedError(RemoteError):
    """The server refused; asking again the same way will not help.

    Attributes:
        status: the HTTP status.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class NonsenseError(RemoteError):
    """What answers does not speak the protocol."""
