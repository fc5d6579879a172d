"""Errors of a server, under `dejavu_cache.errors.StoreError`."""

from dejavu_cache.errors import ExitCode, StoreError


class RemoteError(StoreError):
    """A request to a server failed."""


class UnreachableError(RemoteError):
    """The server is down, too slow or overloaded; a later request may succeed."""


class SilenceError(UnreachableError):
    """The server did not answer in time; it may only be busy."""


class BusyError(UnreachableError):
    """The server is alive and asks to be asked later: 429, or 503 with `Retry-After`.

    Attributes:
        status: the HTTP status.
        retry_after: seconds to wait before the next request.
    """

    def __init__(self, message: str, status: int, retry_after: float) -> None:
        """Keep the status and the seconds beside the message."""
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class ServerFaultError(UnreachableError):
    """The server failed on this very request, with status 500; others may succeed."""


class RefusedError(RemoteError):
    """The server refused the request (HTTP `status`); repeating it unchanged will not help."""

    exit_code = ExitCode.REFUSED

    def __init__(self, message: str, status: int) -> None:
        """Keep the HTTP status beside the message."""
        super().__init__(message)
        self.status = status


class NonsenseError(RemoteError):
    """The answer does not follow the protocol."""
