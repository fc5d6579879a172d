"""Tokens whose role differs by namespace, and patterns of namespaces, on every route."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from dejavu_service.services.access import EVERYWHERE, Principal, Role
from dejavu_service.services.tokens import TokenRequest
from dejavu_service.storage.database import Database
from dejavu_service.storage.tables import metadata
from fastapi import FastAPI
from pydantic import ValidationError
from sqlalchemy import select
from starlette.routing import Route
from support.service import body, context, post, record_set, scenario

MakeToken = Callable[..., dict[str, str]]
FILLED = {
    "namespace": "main",
    "context": context().digest,
    "scenario": scenario().digest,
    "lease": "0" * 32,
    "token": "0" * 16,
    "quarantine_id": "0" * 16,
}
IN_CONTEXT = "/v1/{namespace}/contexts/{context}"
REQUIRED = {
    "anyone": {
        ("GET", "/livez"), ("GET", "/readyz"), ("GET", "/v1/openapi.json"), ("GET", "/style.css"),
        ("GET", "/favicon.ico"), ("GET", "/favicon.svg"), ("GET", "/login"), ("POST", "/login"),
        ("POST", "/logout"), ("POST", "/v1/token-exchange"),
    },
    "any token": {("GET", "/"), ("GET", "/namespaces")},
    "read": {
        ("GET", "/v1/{namespace}/contexts"), ("GET", f"{IN_CONTEXT}/records"),
        ("GET", f"{IN_CONTEXT}/scenarios"), ("GET", f"{IN_CONTEXT}/records/{{scenario}}"),
        ("POST", "/v1/{namespace}/revalidation"), ("GET", "/v1/{namespace}/misses"),
        ("POST", "/v1/{namespace}/misses"), ("GET", "/v1/{namespace}/export"),
        ("GET", "/pages/{namespace}"), ("GET", "/pages/{namespace}/activity"),
        ("GET", "/pages/{namespace}/compare"), ("GET", "/pages/{namespace}/kernel"),
        ("GET", "/pages/{namespace}/misses"), ("GET", "/pages/{namespace}/contexts/{context}"),
        ("GET", "/pages/{namespace}/contexts/{context}/compare"),
        ("GET", "/pages/{namespace}/contexts/{context}/scenarios/{scenario}"),
    },
    "write": {
        ("POST", "/v1/{namespace}/records"), ("POST", "/v1/{namespace}/leases"),
        ("PUT", "/v1/{namespace}/leases/{lease}"), ("DELETE", "/v1/{namespace}/leases/{lease}"),
    },
    "admin": {
        ("PUT", f"{IN_CONTEXT}/pins/{{scenario}}"), ("DELETE", f"{IN_CONTEXT}/records"),
        ("GET", "/v1/{namespace}/writers"), ("GET", "/v1/{namespace}/quarantines"),
        ("POST", "/v1/{namespace}/quarantines"),
        ("DELETE", "/v1/{namespace}/quarantines/{quarantine_id}"),
        ("POST", "/v1/{namespace}/import"), ("POST", "/v1/{namespace}/promote"),
        ("GET", "/v1/{namespace}/log"),
    },
    "read everywhere": {("GET", "/metrics")},
    "admin everywhere": {("GET", "/v1/log")},
}  # fmt: skip
"""The least that each route needs, in the namespace of its path if it says no more."""
ALLOWED = {
    "nobody": {"anyone"},
    "an admin of others": {"anyone", "any token"},
    "a reader": {"anyone", "any token", "read"},
    "a writer": {"anyone", "any token", "read", "write"},
    "an admin": {"anyone", "any token", "read", "write", "admin"},
    "a reader of all": {"anyone", "any token", "read", "read everywhere"},
    "an admin of all": set(REQUIRED),
}


def routes(app: FastAPI) -> set[tuple[str, str]]:
    """Return method and template of every route; HEAD stands for GET wherever there are both."""
    assert all(isinstance(route, Route) for route in app.routes), app.routes
    return {
        (method, route.path_format)
        for route in app.routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }


def ask(
    client: httpx.Client, method: str, template: str, headers: dict[str, str]
) -> httpx.Response:
    """Send a request to a route, with what its path and its query must have."""
    path = template.format(**FILLED)
    if path.endswith("/kernel"):
        path += f"?name={context().kernel.name}"
    return client.request(method, path, headers=headers, json={})


def test_every_route_wants_the_role_that_the_table_says(
    client: httpx.Client, app: FastAPI, token: MakeToken
) -> None:
    required = {route: needed for needed, listed in REQUIRED.items() for route in listed}
    assert routes(app) == required.keys(), "REQUIRED says of each route who may use it"
    principals = {
        "nobody": {},
        "an admin of others": token("admin", "pr-*", "mai", "main-*"),
        "a reader": token("read", "main"),
        "a writer": token("write", "main"),
        "an admin": token("admin", "main"),
        "a reader of all": token("read", "*"),
        "an admin of all": token("admin", "*"),
    }
    for who, headers in principals.items():
        for (method, template), needed in sorted(required.items()):
            answer = ask(client, method, template, headers)
            said = (who, method, template, answer.status_code, answer.text[:200])
            assert answer.status_code < 500, said
            if needed in ALLOWED[who]:
                # The page of the login says with 401 that the token of a form is wrong.
                assert answer.status_code not in (401, 403) or template == "/login", said
            else:
                assert answer.status_code == (403 if headers else 401), said


def read_tables(database: Database) -> dict[str, list[Any]]:
    with database.read() as connection:
        return {
            table.name: sorted(map(repr, connection.execute(select(table))))
            for table in metadata.sorted_tables
            if table.name not in ("leases", "misses", "log_entries")
        }


def test_a_writer_of_pull_requests_changes_nothing_in_what_it_may_read(
    client: httpx.Client, app: FastAPI, database: Database, token: MakeToken
) -> None:
    post(client, headers=token("admin"))
    mine = token({"pr-*": "write", "main": "read"})
    before = read_tables(database)
    for method, template in sorted(routes(app)):
        if "{namespace}" not in template:
            continue
        answer = ask(client, method, template, mine)
        may = (method, template) in REQUIRED["read"]
        assert (answer.status_code == 403) != may, (method, template, answer.text)
    assert read_tables(database) == before
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


RIGHTS: dict[str, tuple[Role, set[str]]] = {
    "*": ("read", {"Pr-7", "mainx"}),
    "pr-*": ("write", {"pr-70"}),
    "pr-7": ("read", {"pr-7"}),
    "pr-7x*": ("admin", {"pr-7x", "pr-7x1"}),
    "main": ("write", {"main"}),
}
"""The role that each pattern grants, and namespaces for which it is the one that counts."""


def test_the_most_specific_right_counts() -> None:
    principal = Principal("ci", {pattern: role for pattern, (role, _) in RIGHTS.items()})
    for role, namespaces in RIGHTS.values():
        for namespace in namespaces:
            assert principal.may(role, namespace), namespace
            assert principal.may("admin", namespace) == (role == "admin"), namespace


def test_all_namespaces_means_all_of_them() -> None:
    rights: dict[str, Role] = {"*": "admin", "main": "read"}
    assert not Principal("ops", rights).may("write", EVERYWHERE), "it could make a token for main"
    assert Principal("ops", rights).may("read", EVERYWHERE)
    assert not Principal("ci", {"pr-*": "admin"}).may("read", EVERYWHERE)
    assert not Principal("nobody", {}).may("read", EVERYWHERE)


def test_no_token_names_what_is_no_namespace_or_role() -> None:
    wrongs: list[dict[str, Any]] = [
        *({name: "read"} for name in ("pr-*x", "**", "*-pr", "pr-*\n", "m\u0430in", "a" * 65)),
        {},
        {"main": "owner"},
        {"../main": "read"},
    ]
    for wrong in wrongs:
        with pytest.raises(ValidationError):
            TokenRequest(name="ci", grants=wrong)
