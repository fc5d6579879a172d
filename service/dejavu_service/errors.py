"""Errors of the service's rules; `problems` translates them to HTTP in one place.

DejavuError
├── ServiceError              an operation was refused; the message says what to change
│   ├── UnauthenticatedError  an identity token is not valid here
│   ├── AccessDeniedError     the principal lacks the role or the namespace
│   ├── NotFoundError         there is no such context, record, lease or token
│   ├── InvalidRequestError   the request is well-formed and cannot be carried out
│   │   └── TokenExistsError      a new token would have the id of another one
│   ├── IssuerUnavailableError  an issuer's keys cannot be read now
│   ├── ServerStoppingError   a long request ends early; what it did so far stays
│   ├── TooLargeError         the request has more records, misses or bytes than allowed
│   ├── TooManyLeasesError    the principal holds as many leases as it may
│   └── TooManyTokensError    an identity token has been given as many tokens as it may
├── SchemaError               the database's schema does not fit this version
├── ListenError               the server cannot listen on its address
└── MissingDatabaseError      a SQLite file that must exist does not
"""

from __future__ import annotations

from dejavu_cache.errors import DejavuError, ExitCode

__all__ = [
    "AccessDeniedError",
    "InvalidRequestError",
    "IssuerUnavailableError",
    "ListenError",
    "MissingDatabaseError",
    "NotFoundError",
    "SchemaError",
    "ServerStoppingError",
    "ServiceError",
    "TokenExistsError",
    "TooLargeError",
    "TooManyLeasesError",
    "TooManyTokensError",
    "UnauthenticatedError",
]


class ServiceError(DejavuError):
    """An operation was refused."""


class AccessDeniedError(ServiceError):
    """The principal lacks the role or the namespace that the operation needs."""

    exit_code = ExitCode.REFUSED


class UnauthenticatedError(ServiceError):
    """An identity token is malformed, expired, forged, or for somebody else."""

    exit_code = ExitCode.REFUSED


class IssuerUnavailableError(ServiceError):
    """The keys of an issuer of identity tokens cannot be read now."""


class ServerStoppingError(ServiceError):
    """A long request ends early because the server stops; what it did so far stays."""


class NotFoundError(ServiceError):
    """There is no such context, record, lease or token."""

    exit_code = ExitCode.NEGATIVE


class InvalidRequestError(ServiceError):
    """The request is well-formed but cannot be carried out."""

    exit_code = ExitCode.USAGE


class TokenExistsError(InvalidRequestError):
    """A new token would have the id of another one, which may be expired or revoked."""


class TooLargeError(ServiceError):
    """The request has more records, misses or bytes than the settings allow."""


class TooManyLeasesError(ServiceError):
    """The principal holds as many leases as it may; some of them end sooner or later."""


class TooManyTokensError(ServiceError):
    """There are as many valid tokens for an identity token as there may be."""


class SchemaError(DejavuError):
    """The database's schema does not fit this version; the message has the command to run."""


class ListenError(DejavuError):
    """The server cannot listen on its address; the message has the reason and what to change."""


class MissingDatabaseError(DejavuError):
    """A SQLite file that a command must not create does not exist."""
