"""Tokens that write to a server, and quarantines of what they wrote."""

from __future__ import annotations

from typing import Any

import httpx
from dejavu_service.services import tokens
from dejavu_service.services.access import ANYBODY
from dejavu_service.storage.database import Database

from dejavu_cache.model.record import Record

from . import service

__all__ = ["Token", "post", "quarantine", "read", "undo"]


class Token:
    """A token, by its id and its headers."""

    def __init__(self, database: Database, name: str, role: Any = "write") -> None:
        issued = tokens.issue(database, ANYBODY, name, {"*": role})
        self.id = issued.id
        self.headers = {"Authorization": f"Bearer {issued.token}"}


def post(client: httpx.Client, token: Token, *records: Record, at: str = "main") -> dict[str, Any]:
    return service.post(client, *records, to=at, of=None, **token.headers)


def read(client: httpx.Client, token: Token, at: str = "main") -> list[Record]:
    return service.read(client, at, **token.headers)


def quarantine(client: httpx.Client, admin: Token, at: str = "main", **wish: Any) -> dict[str, Any]:
    answer = client.post(f"/v1/{at}/quarantines", json=wish, headers=admin.headers)
    assert answer.status_code == (200 if wish.get("preview") else 201), answer.text
    counted: dict[str, Any] = answer.json()
    return counted


def undo(client: httpx.Client, admin: Token, identity: str) -> httpx.Response:
    return client.delete(f"/v1/main/quarantines/{identity}", headers=admin.headers)
