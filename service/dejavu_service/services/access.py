"""Roles, namespaces, and the check that a principal may do something."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from dejavu_cache.settings import NAMESPACE as NAMESPACE

from ..errors import AccessDeniedError

Role = Literal["read", "write", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)
"""In ascending order: each role includes those before it."""

EVERYWHERE = "*"
"""Stands for all namespaces in a token."""
NAMESPACE_PATTERN = r"^(\*|[A-Za-z0-9][A-Za-z0-9._-]{0,63}|[A-Za-z0-9][A-Za-z0-9._-]{0,62}\*)$"
"""Pattern of what names namespaces: `*`, a name, or the beginning of names and one star."""


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
        own = self.grants.get(namespace)
        if namespace == EVERYWHERE:
            own = min(self.grants.values(), key=ROLES.index) if own else None
        elif own is None:
            longest = ""
            for pattern in self.grants:
                is_longer = pattern.endswith("*") and len(pattern) > len(longest)
                if is_longer and namespace.startswith(pattern[:-1]):
                    longest = pattern
            own = self.grants.get(longest)
        return own is not None and ROLES.index(own) >= ROLES.index(role)

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
