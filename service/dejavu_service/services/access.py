"""Roles, namespaces, and the check that a principal may do something."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..errors import AccessDeniedError

__all__ = ["ANYBODY", "EVERYWHERE", "NAMESPACE", "READER", "ROLES", "Principal", "Role"]

Role = Literal["read", "write", "admin"]
ROLES: tuple[Role, ...] = ("read", "write", "admin")
"""In ascending order: each role includes those before it."""

NAMESPACE = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
"""Pattern of a namespace's name."""
EVERYWHERE = "*"
"""Stands for all namespaces in a token."""


@dataclass(frozen=True)
class Principal:
    """Somebody whose token was verified, or who needs none.

    Attributes:
        name: The name under which the principal appears in logs and in the database.
        role: The highest role of the principal.
        namespaces: The namespaces that the principal may use, or `EVERYWHERE`.
    """

    name: str
    role: Role
    namespaces: frozenset[str]

    def may(self, role: Role, namespace: str) -> bool:
        """Return whether the principal has a role in a namespace."""
        allowed = namespace in self.namespaces or EVERYWHERE in self.namespaces
        return allowed and ROLES.index(self.role) >= ROLES.index(role)

    def require(self, role: Role, namespace: str) -> None:
        """Check that the principal has a role in a namespace.

        Raises:
            AccessDeniedError: The principal lacks it; the message names what is needed.
        """
        if not self.may(role, namespace):
            scope = "all namespaces" if namespace == EVERYWHERE else f"namespace {namespace!r}"
            own = f"role {self.role!r} for {', '.join(sorted(self.namespaces))}"
            raise AccessDeniedError(
                f"this needs a token with role {role!r} for {scope}; yours has {own}"
            )


ANYBODY = Principal("anybody", "admin", frozenset({EVERYWHERE}))
"""Everyone, as long as no token was ever issued."""

READER = Principal("a reader without a token", "read", frozenset({EVERYWHERE}))
"""Everyone without a token, where the settings open the server for reading."""
