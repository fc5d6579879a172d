"""Errors of the service's rules, each with the HTTP status that `problems` answers with."""

from __future__ import annotations

from dejavu_cache.errors import DejavuError, ExitCode

__all__ = [
    "AccessDeniedError",
    "InvalidRequestError",
    "NotFoundError",
    "SchemaError",
    "ServiceError",
    "TokenExistsError",
    "TooLargeError",
    "TooManyError",
    "UnauthenticatedError",
    "UnavailableError",
]


class ServiceError(DejavuError):
    """An operation was refused; the message says what to change."""

    status = 500


class UnauthenticatedError(ServiceError):
    """An identity token is malformed, expired, forged, or for somebody else."""

    status, exit_code = 401, ExitCode.REFUSED


class AccessDeniedError(ServiceError):
    """The principal lacks the role or the namespace that the operation needs."""

    status, exit_code = 403, ExitCode.REFUSED


class NotFoundError(ServiceError):
    """There is no such context, record, lease or token."""

    status, exit_code = 404, ExitCode.NEGATIVE


class TooLargeError(ServiceError):
    """The request has more records, misses or bytes than one may have."""

    status = 413


class InvalidRequestError(ServiceError):
    """The request is well-formed but cannot be carried out."""

    status, exit_code = 422, ExitCode.USAGE


class TokenExistsError(InvalidRequestError):
    """A new token would have the id of another one, which may be expired or revoked."""


class TooManyError(ServiceError):
    """The principal holds as many leases, or tokens for one identity token, as it may."""

    status = 429


class UnavailableError(ServiceError):
    """An issuer's keys cannot be read now, or the server stops amid a long request."""

    status = 503


class SchemaError(DejavuError):
    """There is no database, or its schema does not fit; the message says what to do."""
