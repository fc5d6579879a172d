"""Pull requests tune in namespaces of their own, and cannot touch each other, nor `main`."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml  # type: ignore[import-untyped, unused-ignore]
from dejavu_service.app import create_app
from dejavu_service.settings import ServerSettings
from support.checkout import ROOT
from support.issuer import Issuer, write_rules
from support.service import body, client_of, read, record, record_set

WORKFLOW = yaml.safe_load((ROOT / "deploy/github/tuning.yml").read_text())


@pytest.fixture
def client(sqlite_url: str, issuer: Issuer, tmp_path: Path) -> Iterator[httpx.Client]:
    """Yield a client of a server with the rules that the documentation shows."""
    page = (ROOT / "docs/server.md").read_text()
    rules = page.partition("[[issuers.rules]]")[2].partition("[[issuers]]")[0]
    path = write_rules(tmp_path / "oidc.toml", issuer, f"[[issuers.rules]]{rules}")
    with client_of(create_app(ServerSettings(database=sqlite_url, oidc=path))) as opened:
        yield opened


def job(client: httpx.Client, issuer: Issuer, **claims: Any) -> dict[str, str]:
    """Return the headers of a job that exchanged its identity token."""
    answer = client.post("/v1/token-exchange", json={"token": issuer.token(**claims)})
    assert answer.status_code == 201, answer.text
    return {"Authorization": f"Bearer {answer.json()['token']}"}


def run_of(number: int, run: int) -> dict[str, str]:
    """Return the claims of a run of a pull request."""
    return {"ref": f"refs/pull/{number}/merge", "run_id": str(run), "event_name": "pull_request"}


MAIN = {"ref": "refs/heads/main", "run_id": "90", "event_name": "push"}


def send(client: httpx.Client, namespace: str, headers: dict[str, str], m: int = 1) -> int:
    sent = body(record_set(record(m)))
    return client.post(f"/v1/{namespace}/records", json=sent, headers=headers).status_code


def promote(
    client: httpx.Client, headers: dict[str, str], namespace: str, *writers: str
) -> httpx.Response:
    wish = {"to": "main", "writers": list(writers) or None}
    return client.post(f"/v1/{namespace}/promote", json=wish, headers=headers)


def test_a_hostile_pull_request_reaches_no_other(client: httpx.Client, issuer: Issuer) -> None:
    """It may run what it likes, also another workflow: what its token says is GitHub's."""
    honest, hostile = (job(client, issuer, **run_of(*of)) for of in ((7, 70), (8, 80)))
    assert send(client, "pr-7-70", honest) == 200
    for namespace in ("pr-7-70", "pr-7-71", "pr-8-81", "pr-8", "main"):
        assert send(client, namespace, hostile, 2) == 403, namespace
    assert client.get("/v1/pr-7-70/contexts", headers=hostile).status_code == 403
    for wish in ({"to": "pr-7-70"}, {"to": "main"}):
        answer = client.post("/v1/pr-8-80/promote", json=wish, headers=hostile)
        assert answer.status_code == 403


@pytest.mark.parametrize(
    "claims",
    [
        {"ref": "refs/pull/7-70/merge", "run_id": "x/y"},
        {"ref": "refs/pull/7/head", "run_id": "70"},
        {"ref": "refs/pull/*/merge", "run_id": "70"},
        {"ref": "refs/pull/7/../8/merge", "run_id": "70"},
        {"ref": "refs/pull/7/merge", "run_id": "7" * 60},
        {"ref": "refs/pull/7/merge", "run_id": 70},
        {"ref": "refs/pull/7/merge\n", "run_id": "70"},
        {"ref": "refs/heads/main", "run_id": "70", "event_name": "pull_request_target"},
        {"repository": "evil/kernels", **run_of(7, 70)},
    ],
    ids=str,
)
def test_no_claim_widens_a_rule(
    client: httpx.Client, issuer: Issuer, claims: dict[str, Any]
) -> None:
    answer = client.post("/v1/token-exchange", json={"token": issuer.token(**claims)})
    assert answer.status_code == 403, answer.text


def test_main_promotes_what_the_merged_run_wrote_alone(
    client: httpx.Client, issuer: Issuer
) -> None:
    mine, main = job(client, issuer, **run_of(7, 70)), job(client, issuer, **MAIN)
    assert send(client, "pr-7-70", mine) == 200
    assert promote(client, mine, "pr-7-70", "pull request 7 run 70").status_code == 403
    promoted = promote(client, main, "pr-7-70", "pull request 7 run 70")
    assert (promoted.status_code, promoted.json()) == (200, {"records": 1})
    assert send(client, "pr-7-70", main, 2) == 200
    refused = promote(client, main, "pr-7-70", "pull request 7 run 70")
    assert refused.status_code == 422
    assert "did not write" in refused.json()["detail"]
    assert read(client, headers=main) == [record(1)]
    assert promote(client, main, "pr-7-70").status_code == 200


def test_the_workflow_runs_no_foreign_code_with_a_token() -> None:
    text = (ROOT / "deploy/github/tuning.yml").read_text()
    assert "secrets." not in text
    assert WORKFLOW["permissions"] == {}
    for name, of in WORKFLOW["jobs"].items():
        uses = [step["uses"] for step in of["steps"] if "uses" in step]
        assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", use) for use in uses), uses
        installs = [step["run"] for step in of["steps"] if "pip install" in step.get("run", "")]
        assert all("==0.1.0" in run for run in installs)
        runs_foreign_code = any(use.startswith("actions/checkout@") for use in uses)
        assert runs_foreign_code == (name == "sweep")
        if runs_foreign_code:
            assert of["permissions"] == {"contents": "read"}
            checkout = of["steps"][0]
            assert checkout["with"]["persist-credentials"] is False
            assert "TOKEN" not in str(of)
