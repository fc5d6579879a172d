"""The worklist."""

from __future__ import annotations

from typing import Any

import httpx
from support.service import body, context, record, record_set, scenario


def miss(m: int, count: int = 1, kernel: str = "shop.kernels.matmul") -> dict[str, Any]:
    return {"context": body(context(kernel)), "scenario": body(scenario(m)), "count": count}


def report(client: httpx.Client, *misses: dict[str, Any]) -> int:
    counted: int = client.post("/v1/main/misses", json={"misses": misses}).json()["counted"]
    return counted


def list_misses(client: httpx.Client, query: str = "") -> list[tuple[int, int]]:
    misses = client.get(f"/v1/main/misses{query}").json()["misses"]
    return [(item["scenario"]["args"]["M"], item["count"]) for item in misses]


def test_misses_add_up_most_wanted_first(client: httpx.Client) -> None:
    assert report(client, miss(1), miss(2, 5), miss(1)) == 7
    report(client, miss(3, 3))
    report(client, miss(1, 4))
    assert list_misses(client) == [(1, 6), (2, 5), (3, 3)]
    assert list_misses(client, "?limit=1") == [(1, 6)]
    (first, *_) = client.get("/v1/main/misses").json()["misses"]
    assert first["context"] == body(context())
    assert first["first_seen"] <= first["last_seen"]


def test_misses_of_one_kernel(client: httpx.Client) -> None:
    report(client, miss(1), miss(2, kernel="other.kernel"))
    assert list_misses(client, "?kernel=other.kernel") == [(2, 1)]
    assert client.get("/v1/pr-1/misses").json() == {"misses": []}


def test_a_scenario_with_a_record_is_no_miss(client: httpx.Client) -> None:
    report(client, miss(1), miss(2))
    client.post("/v1/main/records", json=body(record_set(record(1))))
    report(client, miss(1))
    assert list_misses(client) == [(2, 1)]


def test_a_missed_context_holds_nothing_yet(client: httpx.Client) -> None:
    report(client, miss(1))
    assert client.get("/v1/main/contexts").json()["contexts"] == []
    assert client.get(f"/v1/main/contexts/{context().digest}/records").status_code == 404
