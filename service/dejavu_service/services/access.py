"""Who may do what, and where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..problems import ProblemError

__all__ = ["EVERYWHERE", "NAMESPACE", "ROLES", "Principal", "Role"]

Role = Literal["read", "write", "admin"]
ROLES: tuple[Role, ...] = ("read", "write", "admin")
"""Each may do what those before it may."""

NAMESPACE = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
EVERYWHERE = "*"


@dataclass(frozen=True)
class Principal:
    """Somebody whose token was checked, or who needs none."""

    name: str
    role: Role
    namespaces: frozenset[str]
    """Those the token may use, or `*`."""

    def may(self, role: Role, namespace: str) -> bool:
        """Whether the token allows that."""
        allowed = namespace in self.namespaces or EVERYWHERE in self.namespaces
        return allowed and ROLES.index(self.role) >= ROLES.index(role)

    def require(self, role: Role, namespace: str) -> None:
        """Refuses what the token does not allow.

        Raises:
            ProblemError: 403, naming the role and the namespace that are needed.
        """
        if not self.may(role, namespace):
            place = "all namespaces" if namespace == EVERYWHERE else f"namespace {namespace!r}"
            raise ProblemError(
                403,
                f"this needs a token with role {role!r} for {place}; yours has {self._described}",
            )

    @property
    def _described(self) -> str:
        return f"role {self.role!r} for {', '.join(sorted(self.namespaces))}"
