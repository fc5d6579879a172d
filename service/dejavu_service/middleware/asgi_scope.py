"""Reading an ASGI scope without building a request."""

from __future__ import annotations

from starlette.types import Scope

__all__ = ["client", "header"]


def header(scope: Scope, name: bytes) -> str | None:
    """A header's value by its name in lower case, or None."""
    for key, value in scope["headers"]:
        if key == name:
            return str(value.decode("latin-1"))
    return None


def client(scope: Scope) -> str:
    """The address the request came from."""
    return scope["client"][0] if scope.get("client") else "unknown"
