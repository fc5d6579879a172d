"""Errors of the service's rules, each with the HTTP status that `problems` answers with."""

from collections.abc import Mapping
from typing import Any, ClassVar

from dejavu_cache.errors import DejavuError, ExitCode


class ServiceError(DejavuError):
    """An operation was refused; the message says what to change."""

    status = 500
    headers: ClassVar[Mapping[str, str]] = {}
    """Headers of the answer."""


class InvalidJsonError(ServiceError):
    """The text is not JSON, or has a character that databases cannot store."""

    status = 400


class UnauthenticatedError(ServiceError):
    """A token is missing, malformed, expired, revoked, forged, or for somebody else."""

    status, exit_code = 401, ExitCode.REFUSED
    headers: ClassVar[Mapping[str, str]] = {"WWW-Authenticate": "Bearer"}


class AccessDeniedError(ServiceError):
    """The principal lacks the role or the namespace that the operation needs."""

    status, exit_code = 403, ExitCode.REFUSED


class NotFoundError(ServiceError):
    """There is no such context, record, lease or token."""

    status, exit_code = 404, ExitCode.NEGATIVE


class TooLargeError(ServiceError):
    """The request has more records, misses or bytes than one may have."""

    status = 413


class BadMediaError(ServiceError):
    """The body is compressed, or not said to be JSON."""

    status = 415


class InvalidRequestError(ServiceError):
    """The request is well-formed but cannot be carried out."""

    status, exit_code = 422, ExitCode.USAGE


class InvalidValueError(InvalidRequestError):
    """The text is JSON, and its value is not that of the model.

    Attributes:
        errors: The first errors, each with the path `loc` and the message `msg`.
        count: The number of errors found.
    """

    def __init__(self, errors: list[dict[str, Any]], count: int) -> None:
        """Keep the errors of a value."""
        self.errors, self.count = errors, count
        more = f", and {count - 1} more" if count > 1 else ""
        path = ".".join(map(str, errors[0]["loc"])) or "the value"
        super().__init__(f"{path}: {errors[0]['msg']}{more}")


class TooManyError(ServiceError):
    """The principal has as many leases, or requests in progress, as it may."""

    status = 429
    headers: ClassVar[Mapping[str, str]] = {"Retry-After": "2"}


class UnavailableError(ServiceError):
    """The server is busy or stops, or something that it needs does not answer."""

    status = 503
    headers: ClassVar[Mapping[str, str]] = {"Retry-After": "2", "Connection": "close"}


class SchemaError(DejavuError):
    """There is no database, or its schema does not fit; the message says what to do."""
