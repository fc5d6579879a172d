"""Roles, namespaces, and the check that a principal may do something."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from ..errors import AccessDeniedError

__all__ = [
    "ANYBODY",
    "EVERYWHERE",
    "NAMESPACE",
    "NAMESPACE_PATTERN",
    "NOBODY",
    "READER",
    "ROLES",
    "Principal",
    "Role",
    "most_specific",
]

Role = Literal["read", "write", "admin"]
ROLES: tuple[Role, ...] = ("read", "write", "admin")
"""In ascending order: each role includes those before it."""

NAMESPACE = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
"""Pattern of a namespace's name."""
EVERYWHERE = "*"
"""Stands for all namespaces in a token."""
NAMESPACE_PATTERN = r"^(\*|[A-Za-z0-9][A-Za-z0-9._-]{0,63}|[A-Za-z0-9][A-Za-z0-9._-]{0,62}\*)$"
"""Pattern of what names namespaces: `*`, a name, or the beginning of names and one star."""


def most_specific(patterns: Collection[str], namespace: str) -> str | None:
    """Return the pattern that decides about a namespace: its name, else the longest beginning."""
    if namespace in patterns:
        return namespace
    best_pattern: str | None = None
    for pattern in patterns:
        is_longer = best_pattern is None or len(pattern) > len(best_pattern)
        if is_longer and pattern.endswith("*") and namespace.startswith(pattern[:-1]):
            best_pattern = pattern
    return best_pattern


@dataclass(frozen=True)
class Principal:
    """Somebody whose token was verified, or who needs none.

    Attributes:
        name: The name under which the principal appears in logs and in the database.
        grants: Roles by namespace, by the beginning of namespaces' names (`pr-*`), or by
            `EVERYWHERE`; the most specific one counts.
    """

    name: str
    grants: Mapping[str, Role]

    def may(self, role: Role, namespace: str) -> bool:
        """Return whether the principal has a role in a namespace.

        In `EVERYWHERE` it has the lowest role of all, so that an exception takes nothing back that
        another right would give again.
        """
        if namespace == EVERYWHERE:
            own = list(self.grants.values()) if EVERYWHERE in self.grants else []
        else:
            pattern = most_specific(self.grants, namespace)
            own = [] if pattern is None else [self.grants[pattern]]
        return bool(own) and min(map(ROLES.index, own)) >= ROLES.index(role)

    def require(self, role: Role, namespace: str) -> None:
        """Check that the principal has a role in a namespace.

        Raises:
            AccessDeniedError: The principal lacks it; the message names what is needed.
        """
        if not self.may(role, namespace):
            scope = "all namespaces" if namespace == EVERYWHERE else f"namespace {namespace!r}"
            own = ", ".join(f"{own!r} for {name}" for name, own in sorted(self.grants.items()))
            raise AccessDeniedError(
                f"this needs a token with role {role!r} for {scope}; yours has role {own}"
            )


ANYBODY = Principal("anybody", {EVERYWHERE: "admin"})
"""Everyone, as long as no token was ever issued."""

NOBODY = Principal("nobody", {})
"""Everyone who has yet to get a token."""

READER = Principal("a reader without a token", {EVERYWHERE: "read"})
"""Everyone without a token, where the settings open the server for reading."""
