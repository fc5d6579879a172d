"""Tokens whose role differs by namespace, and patterns of namespaces, on every route."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import dejavu_service.pages
import dejavu_service.routes
import httpx
import pytest
from dejavu_service.services import tokens
from dejavu_service.services.access import ANYBODY, EVERYWHERE, Principal, Role, most_specific
from dejavu_service.storage.database import Database
from dejavu_service.storage.tables import metadata
from fastapi import APIRouter
from fastapi.routing import APIRoute
from sqlalchemy import select
from support.service import body, context, record_set, scenario

FILLED = {
    "context": context().digest,
    "scenario": scenario().digest,
    "lease": "0" * 32,
    "token": "0" * 16,
    "quarantine_id": "0" * 16,
    "change": "claim",
}
ADMINS_LISTS = {"log", "writers", "quarantines"}
READING_BODIES = {"/v1/{namespace}/misses", "/v1/{namespace}/revalidation"}
"""Routes that take a body from whoever may read."""


def issue(
    database: Database, role: Role, *namespaces: str, **grants: Role
) -> tuple[str, dict[str, str]]:
    by_pattern = {name.replace("_", "-"): role for name, role in grants.items()}
    issued = tokens.issue(database, ANYBODY, "ci", role, namespaces, None, by_pattern)
    return issued.id, {"Authorization": f"Bearer {issued.token}"}


def routes() -> Iterator[tuple[str, str, str]]:
    """Yield method, template and path in `main` of every route of a namespace."""
    seen = set()
    packages = (dejavu_service.routes, dejavu_service.pages)
    modules = (
        f"{of.__name__}.{part.name}" for of in packages for part in iter_modules(of.__path__)
    )
    for name in modules:
        router = getattr(import_module(name), "router", None)
        for route in router.routes if isinstance(router, APIRouter) else ():
            assert isinstance(route, APIRoute)
            path = route.path.replace("{namespace}", "main")
            for name, value in FILLED.items():
                path = path.replace(f"{{{name}}}", value)
            if path.endswith("/kernel"):
                path += f"?name={context().kernel.name}"
            if path != route.path and "{namespace}" in route.path:
                seen |= {(method, route.path, path) for method in route.methods or ()}
    assert len(seen) > 20
    yield from sorted(seen)


def stored(database: Database) -> dict[str, list[Any]]:
    with database.read() as connection:
        return {
            table.name: sorted(map(repr, connection.execute(select(table))))
            for table in metadata.sorted_tables
            if table.name not in ("leases", "misses", "log_entries")
        }


def test_a_writer_of_pull_requests_changes_nothing_in_what_it_may_read(
    client: httpx.Client, database: Database
) -> None:
    _, admin = issue(database, "admin", "*")
    _, mine = issue(database, "write", "pr-*", main="read")
    assert client.post("/v1/main/records", json=body(record_set()), headers=admin).is_success
    before = stored(database)
    for method, template, path in routes():
        answer = client.request(method, path, headers=mine, json={})
        if method in ("GET", "HEAD") and template.rpartition("/")[2] not in ADMINS_LISTS:
            assert answer.status_code == 200, (method, path, answer.text)
        elif template in READING_BODIES:
            assert answer.status_code == 422, (method, path)
        else:
            assert answer.status_code == 403, (method, path, answer.text)
    assert stored(database) == before
    for name in ("pr-7", "pr-", "pr-7.x"):
        sent = client.post(f"/v1/{name}/records", json=body(record_set()), headers=mine)
        assert sent.status_code == 200
    # Neither what only looks like the pattern, nor a way out of it.
    for name in ("pr", "PR-7", "ppr-7", "pr-*", "pr-7/../main", "pr-7%2f..%2fmain", "pr-7%00", "*"):
        sent = client.post(f"/v1/{name}/records", json=body(record_set()), headers=mine)
        assert sent.status_code in (403, 404, 405, 422), (name, sent.text)
    for promoted in ("main", "pr-8"):
        sent = client.post("/v1/pr-7/promote", json={"to": promoted}, headers=mine)
        assert sent.status_code == 403


def test_no_route_of_a_namespace_answers_a_token_of_another(
    client: httpx.Client, database: Database
) -> None:
    _, admin = issue(database, "admin", "*")
    _, other = issue(database, "admin", "pr-*", "mai", "main-*")
    client.post("/v1/main/records", json=body(record_set()), headers=admin)
    for method, _, path in routes():
        assert client.request(method, path, headers=other, json={}).status_code == 403, path
    for path in ("/v1/tokens", "/v1/log", "/metrics"):
        assert client.get(path, headers=other).status_code == 403


@pytest.mark.parametrize(
    ("namespace", "pattern"),
    [
        ("main", "main"),
        ("pr-7", "pr-7"),
        ("pr-70", "pr-*"),
        ("pr-7x", "pr-7x*"),
        ("pr-7x1", "pr-7x*"),
        ("Pr-7", "*"),
        ("mainx", "*"),
    ],
)
def test_the_most_specific_right_counts(namespace: str, pattern: str) -> None:
    rights: dict[str, Role] = {
        "*": "read",
        "pr-*": "write",
        "pr-7": "read",
        "pr-7x*": "admin",
        "main": "write",
    }
    assert most_specific(rights, namespace) == pattern
    principal = Principal("ci", rights)
    assert principal.may(rights[pattern], namespace)
    assert principal.may("admin", namespace) == (rights[pattern] == "admin")


def test_all_namespaces_means_all_of_them() -> None:
    rights: dict[str, Role] = {"*": "admin", "main": "read"}
    assert not Principal("ops", rights).may("write", EVERYWHERE), "it could make a token for main"
    assert Principal("ops", rights).may("read", EVERYWHERE)
    assert not Principal("ci", {"pr-*": "admin"}).may("read", EVERYWHERE)
    assert not Principal("nobody", {}).may("read", EVERYWHERE)


def test_roles_are_chosen_and_listed_by_namespace(client: httpx.Client, database: Database) -> None:
    identity, admin = issue(database, "admin", "*")
    wish = {"name": "ci", "role": "write", "namespaces": ["pr-*"], "grants": {"main": "read"}}
    made = client.post("/v1/tokens", json=wish, headers=admin).json()
    tokens = client.get("/v1/tokens", headers=admin).json()["tokens"]
    listed = {token["id"]: token for token in tokens}
    assert {key: token["grants"] for key, token in listed.items()} == {
        identity: {"*": "admin"},
        made["id"]: {"pr-*": "write", "main": "read"},
    }
    # An earlier version knows only these: the lowest role everywhere.
    issued = listed[made["id"]]
    assert (issued["role"], issued["namespaces"]) == ("read", ["main", "pr-*"])
    logged = client.get("/v1/log", params={"action": "create token"}, headers=admin).json()
    assert logged["entries"][0]["detail"]["grants"] == {"main": "read", "pr-*": "write"}
    assert "grants" not in logged["entries"][1]["detail"], identity
    wrongs: list[dict[str, Any]] = [
        {"namespaces": ["pr-*x"]},
        {"namespaces": ["**"]},
        {"namespaces": ["*-pr"]},
        {"namespaces": ["pr-*\n"]},
        {"namespaces": ["m\u0430in"]},
        {"namespaces": ["a" * 65]},
        {"namespaces": [], "grants": {}},
        {"grants": {"pr-*": "read"}},
        {"grants": {"main": "owner"}},
        {"grants": {"../main": "read"}},
    ]
    for wrong in wrongs:
        answer = client.post("/v1/tokens", json={**wish, **wrong}, headers=admin)
        assert answer.status_code in (400, 422), wrong
    assert made["grants"] == issued["grants"]


def test_a_lease_is_not_given_to_another_token_that_says_the_same_name(
    client: httpx.Client, database: Database
) -> None:
    _, mine = issue(database, "write", "main")
    _, theirs = issue(database, "write", "main")
    wish = {"context": body(context()), "scenario": body(scenario()), "holder": "a:1", "ttl": 60.0}

    def ask(headers: dict[str, str]) -> str | None:
        lease: str | None = client.post("/v1/main/leases", json=wish, headers=headers).json()[
            "lease"
        ]
        return lease

    lease = ask(mine)
    assert lease is not None
    assert ask(mine) == lease
    assert ask(theirs) is None
