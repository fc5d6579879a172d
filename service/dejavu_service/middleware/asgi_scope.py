"""Accessors for an ASGI scope, which cost less than a Starlette request."""

from __future__ import annotations

from starlette.types import Scope

__all__ = ["client_address", "header"]


def header(scope: Scope, name: bytes) -> str | None:
    """Return a header's value by its lower-case name, or None."""
    for key, value in scope["headers"]:
        if key == name:
            return str(value.decode("latin-1"))
    return None


def client_address(scope: Scope) -> str:
    """Return the address that the request came from."""
    return scope["client"][0] if scope.get("client") else "unknown"
