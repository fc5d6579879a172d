"""Tokens that write to a server, and quarantines of what they wrote."""

from __future__ import annotations

from typing import Any

import httpx
from dejavu_service.services import tokens
from dejavu_service.services.access import ANYBODY
from dejavu_service.storage.database import Database

__all__ = ["Token", "quarantine", "undo"]


class Token(dict[str, str]):
    """The headers of requests with a new token, and the token's id.

    It has a role in some namespaces or in all, or several roles by their namespaces.
    """

    def __init__(
        self, database: Database, name: str, role: Any = "write", *namespaces: str
    ) -> None:
        grants = role if isinstance(role, dict) else dict.fromkeys(namespaces or "*", role)
        issued = tokens.issue(database, ANYBODY, name, grants)
        super().__init__(Authorization=f"Bearer {issued.token}")
        self.id = issued.id


def quarantine(client: httpx.Client, admin: Token, at: str = "main", **wish: Any) -> dict[str, Any]:
    answer = client.post(f"/v1/{at}/quarantines", json=wish, headers=admin)
    assert answer.status_code == (200 if wish.get("preview") else 201), answer.text
    counted: dict[str, Any] = answer.json()
    return counted


def undo(client: httpx.Client, admin: Token, identity: str) -> httpx.Response:
    return client.delete(f"/v1/main/quarantines/{identity}", headers=admin)
