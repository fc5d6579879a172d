"""Errors of the service's rules; `problems` translates them to HTTP in one place.

DejavuError
├── ServiceError              an operation was refused; the message says what to change
│   ├── AccessDeniedError     the principal lacks the role or the namespace
│   ├── NotFoundError         there is no such context, record, lease or token
│   ├── InvalidRequestError   the request is well-formed and cannot be carried out
│   └── TooLargeError         the request has more records, misses or bytes than allowed
└── SchemaError               the database's schema does not fit this version
"""

from __future__ import annotations

from dejavu_cache.errors import DejavuError

__all__ = [
    "AccessDeniedError",
    "InvalidRequestError",
    "NotFoundError",
    "SchemaError",
    "ServiceError",
    "TooLargeError",
]


class ServiceError(DejavuError):
    """An operation was refused."""


class AccessDeniedError(ServiceError):
    """The principal lacks the role or the namespace that the operation needs."""


class NotFoundError(ServiceError):
    """There is no such context, record, lease or token."""


class InvalidRequestError(ServiceError):
    """The request is well-formed but cannot be carried out."""


class TooLargeError(ServiceError):
    """The request has more records, misses or bytes than the settings allow."""


class SchemaError(DejavuError):
    """The database's schema does not fit this version; the message has the command to run."""
